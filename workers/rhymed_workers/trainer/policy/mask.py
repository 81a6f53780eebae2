"""Who sees whom in a micro-batch: one function, and the forms in which attention kernels want it.

A token sees the tokens before it in its own response and in its row's prompt; with a sliding window, only those fewer
than `window` positions back. Knows neither models nor kernels.

Axes: T tokens of the micro-batch, Q and K query and key tokens of one block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch

CHUNK = 512
"""Query tokens of a block: its mask is small against a row's, and half a chunk of products per query is masked."""

ALONE = 64
"""Tokens of a response, at least, for a block of its own: a call of the kernel costs as much as a small block."""

Sees = Callable[[Any, Any, Any, Any], Tensor]
"""(sequence, head, query index, key index) -> bool, elementwise, as FlexAttention calls it. It uses the last two."""


class Block(NamedTuple):
    """Queries of one row and all keys that one of them sees. Indices in T."""

    queries: tuple[int, int]
    keys: tuple[tuple[int, int], ...]  # one or two ranges
    before: int | None  # keys before the queries, which all else are: causal, without a mask. None: it needs one


class Sequenced(NamedTuple):
    """For kernels of variable lengths: prompts and responses one after another, each with the keys that it sees."""

    keys_K: Tensor | None  # index in T; a response's are its prompt's and its own. None: no prompt is shared
    query_starts: Tensor  # int32, one more than sequences
    key_starts: Tensor
    longest_query: int
    longest_key: int


class Layout:
    """A micro-batch's rows on a device. What is made of it is kept, because all layers ask for the same."""

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self.bounds, self.device = batch.bounds, device
        self.calls = 0  # of the attention function
        self.longest = int(batch.positions_T.max()) + 1  # tokens of the longest sequence
        segments = [np.repeat(np.arange(len(bound) - 1), np.diff(bound)) for bound in batch.bounds]
        rows = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])
        both_2T = torch.from_numpy(np.stack([rows, np.concatenate(segments), batch.positions_T])).to(device)
        self._row_T, self._segment_T, self._position_T = both_2T
        self._masks: dict[tuple[Block, int | None, torch.dtype], Tensor] = {}
        self._blocks: dict[int | None, list[Block]] = {}
        self._flex: dict[int | None, Any] = {}
        self._sequenced: Sequenced | None = None

    def sees(self, window: int | None = None) -> Sees:
        row_T, segment_T, position_T = self._row_T, self._segment_T, self._position_T

        def mask(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
            own = (segment_T[key] == 0) | (segment_T[key] == segment_T[query])
            seen: Tensor = (row_T[query] == row_T[key]) & own & (key <= query)
            return seen if window is None else seen & (position_T[query] - position_T[key] < window)

        return mask

    def dense(self, window: int | None = None) -> Tensor:
        """(T, T) bool: for tests, and for nothing else."""
        every_T = torch.arange(len(self._row_T), device=self.device)
        return self.sees(window)(None, None, every_T[:, None], every_T[None])

    def blocks(self, window: int | None = None) -> list[Block]:
        """Every query once. A row of up to `CHUNK` tokens is one block."""
        if window not in self._blocks:
            self._blocks[window] = [block for bound in self.bounds for block in _blocks(bound, window)]
        return self._blocks[window]

    def additive(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """(1, 1, Q, K) added to the scores: 0 or minus infinity. None if the block is causal."""
        if block.before is not None:
            return None
        name = (block, window, dtype)
        if name in self._masks:
            return self._masks[name]
        query_Q = torch.arange(*block.queries, device=self.device)
        key_K = torch.cat([torch.arange(*keys, device=self.device) for keys in block.keys])
        seen_QK = self.sees(window)(None, None, query_Q[:, None], key_K[None])
        mask = torch.zeros(seen_QK.shape, dtype=dtype, device=self.device).masked_fill_(~seen_QK, -torch.inf)
        if len(key_K) <= CHUNK:  # longer ones together would be quadratic in the row's length
            self._masks[name] = mask[None, None]
        return mask[None, None]

    def block_mask(self, window: int | None) -> Any:
        """FlexAttention's form. Its size is (T / 128)^2."""
        if window not in self._flex:
            from torch.nn.attention.flex_attention import create_block_mask

            count = len(self._row_T)
            self._flex[window] = create_block_mask(self.sees(window), None, None, count, count, device=self.device)
        return self._flex[window]

    def sequenced(self) -> Sequenced:
        if self._sequenced is None:
            self._sequenced = _sequenced(self.bounds, self.device)
        return self._sequenced


def _blocks(bound: tuple[int, ...], window: int | None) -> Iterator[Block]:
    if window is not None:
        yield from _windowed(bound, window)
        return
    start, prompt = bound[:2]
    begun = start  # of what has no block yet
    for first, last in itertools.pairwise(bound[1:]):
        if last - first >= max(ALONE, prompt - start):
            if begun == start and prompt == first:  # prompt and response are one causal sequence
                yield Block((start, last), ((start, last),), 0)
            else:
                yield from _together(bound, begun, first)
                yield Block((first, last), _joined((start, prompt), (first, last)), prompt - start)
            begun = last
    yield from _together(bound, begun, bound[-1])


def _together(bound: tuple[int, ...], begun: int, end: int) -> Iterator[Block]:
    """Adjacent short responses, behind the prompt if `begun` is the row's start."""
    start, prompt, *ends = bound
    if begun == end:
        return
    if begun == start and (end == prompt or end == ends[0]):
        yield Block((start, end), ((start, end),), 0)
    elif begun == start and end - start <= CHUNK:
        yield Block((start, end), ((start, end),), None)
    else:
        if begun == start:
            yield Block((start, prompt), ((start, prompt),), 0)
        for at, last in _chunks(max(begun, prompt), end):
            begin = max(first for first in bound[1:-1] if first <= at)
            yield Block((at, last), _joined((start, prompt), (begin, last)), None)


def _windowed(bound: tuple[int, ...], window: int) -> Iterator[Block]:
    start, prompt = bound[:2]
    if bound[-1] - start <= CHUNK:
        yield Block((start, bound[-1]), ((start, bound[-1]),), None)
        return
    for at, end in _chunks(start, prompt):
        yield Block((at, end), ((max(start, at - window + 1), end),), None)
    for first, last in itertools.pairwise(bound[1:]):
        for at, end in _chunks(first, last):
            before = min(prompt, max(start, prompt + at - first - window + 1)), prompt
            yield Block((at, end), _joined(before, (max(first, at - window + 1), end)), None)


def _chunks(first: int, last: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + CHUNK, last)) for at in range(first, last, CHUNK))


def _joined(prompt: tuple[int, int], own: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    if prompt[0] == prompt[1]:
        return (own,)
    return ((prompt[0], own[1]),) if prompt[1] == own[0] else (prompt, own)


def _sequenced(bounds: tuple[tuple[int, ...], ...], device: torch.device) -> Sequenced:
    queries, keys = [], []
    for bound in bounds:
        start, prompt, *ends = bound
        if len(ends) == 1:  # prompt and response are one causal sequence
            queries.append(ends[0] - start)
            keys.append(np.arange(start, ends[0]))
            continue
        queries += [prompt - start, *np.diff(bound[1:]).tolist()]
        keys.append(np.arange(start, prompt))
        keys += [np.r_[start:prompt, first:last] for first, last in itertools.pairwise(bound[1:])]
    lengths = [len(key) for key in keys]
    starts = np.cumsum([[0, *queries], [0, *lengths]], axis=1, dtype=np.int32)
    query_starts, key_starts = torch.from_numpy(starts).to(device)
    shared = lengths != queries
    keys_K = torch.from_numpy(np.concatenate(keys)).to(device) if shared else None
    return Sequenced(keys_K, query_starts, key_starts, max(queries), max(lengths))
