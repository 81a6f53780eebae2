"""Who sees whom in a micro-batch: one function, and the forms in which attention kernels want it.

A token sees the tokens before it in its own response and in its row's prompt, which may begin in another row; with a
sliding window, only those fewer than `window` positions back. Knows neither models nor kernels.

Axes: T tokens of the micro-batch, Q and K query and key tokens of one block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch

CHUNK = 512
"""Query tokens of a block: its mask is small against a row's, and half a chunk of products per query is masked."""

ALONE = 64
"""Tokens of a response, at least, for a block of its own: a call of the kernel costs as much as a small block."""

TILE = 128
"""Queries and keys of a square of FlexAttention's mask: torch's own size."""

Range = tuple[int, int]
"""Of indices in T."""

Sees = Callable[[Any, Any, Any, Any], Tensor]
"""(sequence, head, query index, key index) -> bool, elementwise, as FlexAttention calls it. It uses the last two."""


class Block(NamedTuple):
    """Queries of one row and all keys that one of them sees. Indices in T."""

    queries: Range
    keys: tuple[Range, ...]  # up to three ranges
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
        self.bounds, self.prefixes, self.device = batch.bounds, batch.prefixes, device
        self.calls = 0  # of the attention function
        self.longest = int(batch.positions_T.max()) + 1  # tokens of the longest sequence
        segments = [np.repeat(np.arange(len(bound) - 1), np.diff(bound)) for bound in batch.bounds]
        rows = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])
        first_T, last_T = np.array(batch.prefixes)[rows].T
        every_T = np.stack([rows, np.concatenate(segments), batch.positions_T, first_T, last_T])
        self._row_T, self._segment_T, self._position_T, *self._prefix_T = torch.from_numpy(every_T).to(device)
        self._masks: dict[tuple[Block, int | None, torch.dtype], Tensor] = {}
        self._blocks: dict[int | None, list[Block]] = {}
        self._flex: dict[int | None, Any] = {}
        self._sequenced: Sequenced | None = None

    def sees(self, window: int | None = None) -> Sees:
        """The same code for every layout and window, with nothing but tensors from outside: to torch.compile a number
        or None there would be another program."""
        row_T, segment_T, position_T = self._row_T, self._segment_T, self._position_T
        first_T, last_T = self._prefix_T
        before_T = torch.full_like(position_T, -1) if window is None else position_T - window  # not seen any more

        def mask(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
            own = (segment_T[key] == 0) | (segment_T[key] == segment_T[query])
            seen: Tensor = (row_T[query] == row_T[key]) & own & (key <= query)
            seen = seen | ((key >= first_T[query]) & (key < last_T[query]))
            return seen & (position_T[key] > before_T[query])

        return mask

    def dense(self, window: int | None = None) -> Tensor:
        """(T, T) bool: for tests, and for nothing else."""
        every_T = torch.arange(len(self._row_T), device=self.device)
        return self.sees(window)(None, None, every_T[:, None], every_T[None])

    def blocks(self, window: int | None = None) -> list[Block]:
        """Every query once. A row of up to `CHUNK` tokens is one block."""
        if window not in self._blocks:
            rows = zip(self.bounds, self.prefixes, strict=True)
            self._blocks[window] = [block for bound, prefix in rows for block in _blocks(bound, prefix, window)]
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
        """FlexAttention's form, of (T / TILE)^2 numbers. It is made from stripes of TILE queries: torch's
        `create_block_mask` makes several (T, T) tensors first."""
        if window not in self._flex:
            from torch.nn.attention.flex_attention import BlockMask

            count = len(self._row_T)
            counts = self._tiles(window)  # pairs that attend to each other
            full = counts == TILE * TILE
            self._flex[window] = BlockMask.from_kv_blocks(
                *_ordered((counts > 0) & ~full),
                *_ordered(full),
                BLOCK_SIZE=TILE,
                mask_mod=self.sees(window),
                seq_lengths=(count, count),
            )
        return self._flex[window]

    def _tiles(self, window: int | None) -> Tensor:
        """(tiles, tiles): the number of pairs of a query and a key in each that attend to each other."""
        sees, count = self.sees(window), len(self._row_T)
        every_T = torch.arange(count, device=self.device)
        tiles = -(-count // TILE)
        counts = torch.empty((tiles, tiles), dtype=torch.int32, device=self.device)
        for stripe, query_Q in enumerate(every_T.split(TILE)):
            seen_T = sees(None, None, query_Q[:, None], every_T[None]).sum(0, dtype=torch.int32)
            padded = torch.nn.functional.pad(seen_T, (0, tiles * TILE - count))
            counts[stripe] = padded.view(tiles, TILE).sum(1)
        return counts

    def sequenced(self) -> Sequenced:
        if self._sequenced is None:
            self._sequenced = _sequenced(self.bounds, self.prefixes, self.device)
        return self._sequenced


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of bools, the number of true ones, and the columns with these first, as FlexAttention takes
    them."""
    found = tiles.to(torch.int32)[None, None]
    return found.sum(-1, dtype=torch.int32), torch.argsort(found, dim=-1, descending=True, stable=True).to(
        torch.int32
    )


def _blocks(bound: tuple[int, ...], prefix: Range, window: int | None) -> Iterator[Block]:
    if window is not None:
        yield from _windowed(bound, prefix, window)
        return
    start, prompt = bound[:2]
    shared, begun = prefix[1] - prefix[0], start  # `begun`: of what has no block yet
    for first, last in itertools.pairwise(bound[1:]):
        if last - first >= max(ALONE, shared + prompt - start):
            if begun == start and prompt == first:  # the rest of the prompt and the response are one causal sequence
                yield Block((start, last), _joined(prefix, (start, last)), shared)
            else:
                yield from _together(bound, prefix, begun, first)
                yield Block((first, last), _joined(prefix, (start, prompt), (first, last)), shared + prompt - start)
            begun = last
    yield from _together(bound, prefix, begun, bound[-1])


def _together(bound: tuple[int, ...], prefix: Range, begun: int, end: int) -> Iterator[Block]:
    """Adjacent short responses, behind the prompt if `begun` is the row's start."""
    start, prompt = bound[:2]
    if begun == end:
        return
    if begun == start and end in bound[1:3] and prefix[0] == prefix[1]:
        yield Block((start, end), ((start, end),), 0)
    elif begun == start and end - start <= CHUNK:
        yield Block((start, end), _joined(prefix, (start, end)), None)
    else:
        if begun == start:
            yield from _prompt((start, prompt), prefix)
        for at, last in _chunks(max(begun, prompt), end):
            begin = max(first for first in bound[1:-1] if first <= at)
            yield Block((at, last), _joined(prefix, (start, prompt), (begin, last)), None)


def _prompt(own: Range, prefix: Range) -> Iterator[Block]:
    """What follows the prefix: behind a longer one, a mask is less work."""
    shared = prefix[1] - prefix[0]
    if own[1] - own[0] >= shared:
        yield Block(own, _joined(prefix, own), shared)
        return
    for at, last in _chunks(*own):
        yield Block((at, last), _joined(prefix, (own[0], last)), None)


def _windowed(bound: tuple[int, ...], prefix: Range, window: int) -> Iterator[Block]:
    start, prompt = bound[:2]

    def within(position: int) -> Range:
        """Of the prefix, for queries from this position in the row on."""
        return min(prefix[1], max(prefix[0], prefix[1] + position - window + 1)), prefix[1]

    if bound[-1] - start <= CHUNK:
        yield Block((start, bound[-1]), _joined(within(0), (start, bound[-1])), None)
        return
    for at, end in _chunks(start, prompt):
        yield Block((at, end), _joined(within(at - start), (max(start, at - window + 1), end)), None)
    for first, last in itertools.pairwise(bound[1:]):
        for at, end in _chunks(first, last):
            position = prompt + at - first
            before = min(prompt, max(start, position - window + 1)), prompt
            own = max(first, at - window + 1), end
            yield Block((at, end), _joined(within(position - start), before, own), None)


def _chunks(first: int, last: int) -> Iterator[Range]:
    return ((at, min(at + CHUNK, last)) for at in range(first, last, CHUNK))


def _joined(*ranges: Range) -> tuple[Range, ...]:
    """Without empty ones, and adjacent ones as one."""
    found: list[Range] = []
    for first, last in ranges:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last
        elif first < last:
            found.append((first, last))
    return tuple(found)


def _sequenced(bounds: Sequence[tuple[int, ...]], prefixes: Sequence[Range], device: torch.device) -> Sequenced:
    queries, keys = [], []
    for (start, prompt, *ends), prefix in zip(bounds, prefixes, strict=True):
        before = np.arange(*prefix)
        if len(ends) <= 1:  # prompt and response are one causal sequence
            last = ends[0] if ends else prompt
            queries.append(last - start)
            keys.append(np.r_[before, start:last])
            continue
        queries += np.diff([start, prompt, *ends]).tolist()
        keys.append(np.r_[before, start:prompt])
        keys += [np.r_[before, start:prompt, first:last] for first, last in itertools.pairwise([prompt, *ends])]
    lengths = [len(key) for key in keys]
    starts = np.cumsum([[0, *queries], [0, *lengths]], axis=1, dtype=np.int32)
    query_starts, key_starts = torch.from_numpy(starts).to(device)
    shared = lengths != queries
    keys_K = torch.from_numpy(np.concatenate(keys)).to(device) if shared else None
    return Sequenced(keys_K, query_starts, key_starts, max(queries), max(lengths))
