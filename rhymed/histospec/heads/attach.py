"""A learned head in an engine: `HeadOf` gives the engine's drafter its head, `EngineHead`, if one is configured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rhymed.core.errors import ConfigError
from rhymed.histospec import plugin
from rhymed.histospec.drafts.types import Noise
from rhymed.histospec.heads.combine import GUESS, Source
from rhymed.histospec.heads.fit import DEPTH
from rhymed.histospec.heads.model import Head, describe, draw, load

log = logging.getLogger(__name__)

# A head inside an engine's worker process: its file, the hidden states of the last step, and its drafts.
#
# A file that cannot be read, or that is for another model, means no head, with a warning: history continues to draft.

WARM_UP = (1, 64)  # requests


class Step(NamedTuple):
    """What a pass begins with; rows are requests."""

    last_B: NDArray[np.int64]  # of `hidden`: the row whose logits gave the request's newest token
    token_B: NDArray[np.int64]  # the newest token
    noise: Noise  # of the tokens after it
    scale_B: NDArray[np.float32]  # 1 / temperature; 0: greedy


class EngineHead:
    """Drafts for the batch of the engine's last step. A `combine.Source`."""

    depth = DEPTH

    def __init__(self, path: Path, width: int, vocabulary: int, device: Any) -> None:
        self._path, self._width, self._vocabulary, self._device = path, width, vocabulary, device
        self._head: Head | None = None
        self._ids = np.zeros(0, np.int32)
        self._seen: tuple[int, int] | None = None  # of the file: when it was written, and its size
        self._hidden: Any = None
        self._drafted: Sequence[int] | None = None
        self._step: Step | None = None

    @property
    def ready(self) -> bool:
        return self._head is not None

    @property
    def guess(self) -> Sequence[float]:
        """By its file."""
        told = "" if self._head is None else self._head.about.get("coupled", "")
        shares = [float(share) for share in told.split()]
        return np.cumprod(shares).tolist() if len(shares) == self.depth else GUESS

    def refresh(self) -> bool:
        """Loads the file if it is new, whenever it has appeared. True: this is another head than before."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        if (seen := (found.st_mtime_ns, found.st_size)) == self._seen:
            return False
        self._seen = seen
        try:
            head = load(self._path, self._width, self._vocabulary).to(self._device)
        except ConfigError as error:
            log.warning("%s", error)
            return False
        self._head, self._ids = head, head.ids_R.cpu().numpy().astype(np.int32)
        self._warm_up()
        log.info("head of %s: %s", self._path, describe(head))
        return True

    def keep(self, hidden_ND: Any, drafted: Sequence[int] | None) -> None:
        """A step's hidden states, a row per logits, and how many drafts each request had in it."""
        self._hidden, self._drafted = hidden_ND, drafted

    def begin(self, new_tokens: Sequence[Sequence[int]], noise: Noise, scale_B: NDArray[np.float32]) -> bool:
        """The step whose hidden states were kept made these tokens. False: they do not belong together."""
        rows = np.ones(len(new_tokens), np.int64)
        if self._drafted is not None:
            rows += np.asarray(self._drafted, np.int64)
        if self._hidden is None or len(rows) != len(scale_B) or rows.sum() != len(self._hidden):
            self._step = None
            return False
        made = np.array([max(1, len(tokens)) for tokens in new_tokens], np.int64)
        last_B = np.cumsum(rows) - rows + made - 1
        token_B = np.array([tokens[-1] if tokens else 0 for tokens in new_tokens], np.int64)
        self._step = Step(last_B, token_B, noise, scale_B)
        return True

    def draft(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        step = self._step
        assert step is not None, "`begin` comes before a draft"
        scale = np.where(step.noise.known, step.scale_B, np.float32(0))[rows].astype(np.float32)
        state = self._hidden[torch.from_numpy(step.last_B[rows]).to(self._device)].float()
        return self._unroll(state, step.token_B[rows], step.noise.keys[rows], step.noise.positions[rows], scale)

    def _unroll(
        self,
        state: torch.Tensor,
        token_B: NDArray[np.int64],
        keys: NDArray[np.uint64],
        positions: NDArray[np.int64],
        scale: NDArray[np.float32],
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        head, count = self._head, len(token_B)
        assert head is not None, "there is a head"
        tokens, leads = np.empty((self.depth, count), np.int32), np.empty((self.depth, count), np.float32)
        last = torch.from_numpy(token_B)
        with torch.inference_mode():
            for depth in range(self.depth):
                state = head.advance(state, last.to(self._device))
                logits = head.logits(state).cpu().numpy()
                draw(logits, self._ids, keys, positions + depth, scale, tokens[depth], leads[depth])
                last = torch.from_numpy(tokens[depth].astype(np.int64))
        return np.ascontiguousarray(tokens.T), np.ascontiguousarray(leads.T)

    def _warm_up(self) -> None:
        """Compiles, and fetches the weights into the caches."""
        for count in WARM_UP:
            zeros, began = np.zeros(count, np.int64), time.perf_counter()
            state = torch.zeros(count, self._width, device=self._device)
            self._unroll(state, zeros, zeros.astype(np.uint64), zeros, np.ones(count, np.float32))
            log.debug("head: %d requests in %.1f ms", count, 1000 * (time.perf_counter() - began))


# The head of one drafter: loaded, replaced by a newer file, or left out.


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
