"""Reads prompts' histories and builds their indexes on a thread of its own, while the engine works.

A history that cannot be read or used is logged as a warning, and its prompt has none. Does not know where history
comes from (a function that reads it is passed in) nor how an index is used.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import RhymedError
from rhymed.histospec.index.index import Index

log = logging.getLogger(__name__)

WARNINGS = 5  # that are logged; later ones are only counted

Built: TypeAlias = tuple[str, Index]
"""A prompt and its index."""


class PastResponse(NamedTuple):
    tokens: NDArray[np.int32]
    step: int  # training step that made it


class Builder:
    """`vocabulary`: token ids from here on belong to another tokenizer. `orders`: see `Index`."""

    def __init__(self, vocabulary: int, orders: tuple[int, int] = (8, 2)) -> None:
        self.vocabulary, self._orders = vocabulary, orders
        self._queue: queue.SimpleQueue[Callable[[], Built | None] | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Built] = queue.SimpleQueue()
        self._closing = False
        self.failed = 0  # histories that could not be used
        self._thread = threading.Thread(target=self._work, name="histospec-builder", daemon=True)
        self._thread.start()

    def submit(self, prompt: str, context: Sequence[int], read: Callable[[], Sequence[PastResponse]]) -> None:
        """Reads and indexes a prompt's history; `finished` returns the index later. `context`: prompt tokens."""

        def work() -> Built | None:
            if self._closing:
                return None
            try:
                return prompt, self._build(context, read())
            except (RhymedError, ValueError, OSError) as error:
                self._warn(f"prompt {prompt} has no history: {error}")
            return None

        self._queue.put(work)

    def run(self, task: Callable[[], None]) -> None:
        """Runs a task on the same thread, in order of submission."""

        def work() -> None:
            try:
                task()
            except (RhymedError, ValueError, OSError) as error:
                self._warn(f"a response was not stored: {error}")

        self._queue.put(work)

    def finished(self) -> list[Built]:
        """The indexes built since the last call."""
        built = []
        while not self._built.empty():
            built.append(self._built.get_nowait())
        return built

    def close(self, timeout_s: float = 10.0) -> bool:
        """Tasks of `run` still run; histories that wait are dropped. False: it took longer than the timeout."""
        self._closing = True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _build(self, context: Sequence[int], past: Sequence[PastResponse]) -> Index:
        expected = sum(len(response.tokens) for response in past)
        index = Index(
            np.asarray(context, np.int32), expected=2 * expected, vocabulary=self.vocabulary, orders=self._orders
        )
        steps = sorted({response.step for response in past}, reverse=True)
        for response in sorted(past, key=lambda response: response.step):
            index.add(response.tokens, age=1 + steps.index(response.step))
        return index

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                built = work()
            except Exception:
                log.exception("building an index failed")
                self.failed += 1
                continue
            if built is not None:
                self._built.put(built)

    def _warn(self, what: str) -> None:
        self.failed += 1
        if self.failed <= WARNINGS:
            more = "; further ones are only counted" if self.failed == WARNINGS else ""
            log.warning("%s%s", what, more)
