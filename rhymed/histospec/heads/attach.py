"""Gives an engine's drafter its head, if one is configured. Imports torch only then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec import plugin
from rhymed.histospec.drafts.types import Noise
from rhymed.histospec.heads.beside import Source

if TYPE_CHECKING:
    from rhymed.histospec.heads.engine import EngineHead

log = logging.getLogger(__name__)


class HeadOf:
    """`path`: the head's file; empty: there is no head. `model`: vLLM's `ModelConfig`. `use`: is given each head that
    is loaded, and None when there is none any more. An error in here ends the head, and history goes on."""

    def __init__(self, path: str, model: Any, use: Callable[[Source | None], None]) -> None:
        self._path, self._model, self._use = path, model, use
        self._head: EngineHead | None = None

    def bind(self, runner: Any) -> None:
        """Does not wait for the file."""
        if not self._path or self._head is not None:
            return
        from rhymed.histospec.heads.engine import EngineHead

        size = int(self._model.get_hidden_size()), int(self._model.get_vocab_size())
        head = EngineHead(Path(self._path), *size, runner.device)
        if not plugin.watch_hidden(runner, head.keep):
            log.warning("no head drafts: this model runner does not hand its hidden states to a drafter")
            return
        self._head = head
        self.refresh()

    def refresh(self) -> None:
        try:
            if self._head is not None and self._head.refresh():
                self._use(self._head)
        except Exception:
            self._end("the head could not be loaded")

    def begin(self, new_tokens: Sequence[Sequence[int]], noise: Noise, scale_B: NDArray[np.float32]) -> None:
        """Before the drafter's step; see `engine.Step`."""
        if self._head is None or not self._head.ready:
            return
        if not self._head.begin(new_tokens, noise, scale_B):
            self._end("hidden states and tokens of a step do not fit together")

    def _end(self, why: str) -> None:
        log.warning("no head drafts from here on: %s", why, exc_info=True)
        self._use(None)
        self._head = None
