"""Brings a prompt's history while the engine works: reads it and builds its index on a thread of its own.

What cannot be read or used is told once as a warning, and that prompt goes without history. Knows neither where
history comes from (a function that reads it is given) nor what is done with an index.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rhymed.errors import RhymedError
from rhymed.histospec.index.index import Index

log = logging.getLogger(__name__)

WARNINGS = 5  # told one by one; later ones are counted

Arrival: TypeAlias = tuple[str, Index]
"""A prompt and its index."""


class Past(NamedTuple):
    """An earlier response to a prompt."""

    tokens: NDArray[np.int32]
    step: int  # training step that made it
    reward: float | None


class Library:
    """`vocabulary`: token ids from here on belong to another tokenizer; `orders`: see `Index`."""

    def __init__(self, vocabulary: int, orders: tuple[int, int] = (8, 2)) -> None:
        self.vocabulary, self._orders = vocabulary, orders
        self._wanted: queue.SimpleQueue[Callable[[], Arrival | None] | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._closing = False
        self.failed = 0  # histories that could not be used
        self._thread = threading.Thread(target=self._work, name="histospec-library", daemon=True)
        self._thread.start()

    def bring(self, prompt: str, context: Sequence[int], read: Callable[[], Sequence[Past]]) -> None:
        """Have it read and indexed; it will be among `arrived`. `context`: the prompt's tokens."""

        def work() -> Arrival | None:
            if self._closing:
                return None
            try:
                return prompt, self._build(context, read())
            except (RhymedError, ValueError, OSError) as error:
                self._complain(f"prompt {prompt} goes without history: {error}")
            return None

        self._wanted.put(work)

    def do(self, work: Callable[[], None]) -> None:
        """Run something else on the same thread, in turn."""

        def done() -> None:
            try:
                work()
            except (RhymedError, ValueError, OSError) as error:
                self._complain(f"a response was not kept: {error}")

        self._wanted.put(done)

    def arrived(self) -> list[Arrival]:
        found = []
        while not self._ready.empty():
            found.append(self._ready.get_nowait())
        return found

    def close(self, timeout_s: float = 10.0) -> bool:
        """What `do` was told is still done; histories that wait are not brought any more. False: it took too long."""
        self._closing = True
        self._wanted.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _build(self, context: Sequence[int], past: Sequence[Past]) -> Index:
        expected = sum(len(one.tokens) for one in past)
        index = Index(
            np.asarray(context, np.int32), expected=2 * expected, vocabulary=self.vocabulary, orders=self._orders
        )
        steps = sorted({one.step for one in past}, reverse=True)
        for one in sorted(past, key=lambda one: one.step):
            index.add(one.tokens, age=1 + steps.index(one.step), reward=one.reward)
        return index

    def _work(self) -> None:
        while (work := self._wanted.get()) is not None:
            try:
                arrival = work()
            except Exception:
                log.exception("building an index failed")
                self.failed += 1
                continue
            if arrival is not None:
                self._ready.put(arrival)

    def _complain(self, what: str) -> None:
        self.failed += 1
        if self.failed <= WARNINGS:
            more = "; further ones are only counted" if self.failed == WARNINGS else ""
            log.warning("%s%s", what, more)
