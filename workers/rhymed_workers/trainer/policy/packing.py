"""Packs sequences into micro-batches, in numpy. Knows no rewards, no torch and no model.

A row is a prompt followed by several responses to it, so the prompt is computed once for all of them. Each response
attends to the prompt and itself, not to its siblings, and its positions continue the prompt's: the outputs are those
of separate sequences. The rows of a micro-batch lie end to end, without padding. Where several of its prompts begin
alike (a system prompt, the description of tools), their common beginning is a row of its own, which they see.

A sample is one sequence, or several if its conversation was rewritten. Where a loss needs whole samples (`whole`), a
sample's sequences are in one micro-batch.

Not every model can compute such rows (`grades`). The others get a row for each response, with its own prompt.

Axes: T tokens of the micro-batch, N response tokens of the micro-batch that are learned.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed_workers.trainer.policy.grades import Grade

Ints = NDArray[np.int64]

SHARED = 16
"""Tokens, at least, with which prompts begin alike to share them: each shared beginning is more attention blocks."""


class Sequences(NamedTuple):
    """A sample's tokens as the model reads them, or one of its several sequences."""

    prompt: NDArray[Any]  # (prompt tokens,) at least one
    response: NDArray[Any]  # (response tokens,)
    learned: NDArray[np.bool_] | None = None  # (response tokens,) False: an environment wrote it; None: all True
    sample: int | None = None  # number of its sample; None: the number of the sequence
    floors: NDArray[np.float32] | None = None  # (response tokens,) see NewSample

    @property
    def size(self) -> int:
        """Tokens that are learned."""
        return len(self.response) if self.learned is None else int(self.learned.sum())


@dataclass
class PackedRow:
    prompt: NDArray[Any]
    sequences: list[int] = field(default_factory=list)
    length: int = 0  # tokens


class Bundle:
    """Rows of one micro-batch, of whole samples."""

    def __init__(self) -> None:
        self.rows: dict[bytes, PackedRow] = {}  # by prompt
        self.length = 0  # tokens

    def added(self, unit: Sequence[tuple[bytes, Sequences]]) -> int:
        """Tokens that these sequences would add."""
        prompts = {key: len(sequence.prompt) for key, sequence in unit if key not in self.rows}
        return sum(prompts.values()) + sum(len(sequence.response) for _, sequence in unit)

    def add(self, key: bytes, number: int, sequence: Sequences) -> None:
        row = self.rows.setdefault(key, PackedRow(sequence.prompt, length=len(sequence.prompt)))
        row.sequences.append(number)
        row.length += len(sequence.response)


@dataclass(frozen=True)
class MicroBatch:
    tokens_T: Ints
    positions_T: Ints  # of a token in its own sequence: prompt and response
    bounds: tuple[tuple[int, ...], ...]  # of each row, in T: its start, the end of its prompt, of its responses
    prefixes: tuple[
        tuple[int, int], ...
    ]  # of each row, in T: the beginning of its prompt in a row before it; or empty
    predictor_N: Ints  # index in T of the token that predicts this response token
    target_N: Ints  # the response token
    flat_N: Ints  # its index among the learned tokens of all samples, sample after sample
    sample_N: Ints  # the number of its sample
    order_N: Ints  # of its sequence: the index in `sequences`
    sequences: tuple[int, ...]  # the numbers of its sequences, in its order
    floor_N: NDArray[np.float32] | None = None  # of the response token, see NewSample; None: for all

    @property
    def tokens(self) -> int:
        """Through the model, with prompts."""
        return len(self.tokens_T)

    def apart(self) -> tuple[Ints, Ints]:
        """(sequences, longest) tokens, 0 behind the end of a sequence, and (N,) where the predictors are in that, if
        its rows lie end to end."""
        rows = [
            np.r_[slice(*prefix), slice(*bound[:2]), slice(*own)]
            for bound, prefix in zip(self.bounds, self.prefixes, strict=True)
            for own in itertools.pairwise(bound[1:])
        ]
        tokens = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for line, row in enumerate(rows):
            tokens[line, : len(row)] = self.tokens_T[row]
        return tokens, self.order_N * tokens.shape[1] + self.positions_T[self.predictor_N]


def offsets(sequences: Sequence[Sequences]) -> Ints:
    """(sequences + 1,): where each begins if the learned tokens of all are concatenated."""
    return np.concatenate([[0], np.cumsum([one.size for one in sequences], dtype=np.int64)])


def micro_batches(
    sequences: Sequence[Sequences],
    chosen: Sequence[int],
    micro_tokens: int,
    *,
    whole: bool = False,
    grade: Grade = Grade.PACKED,
) -> list[MicroBatch]:
    """Every learned token of the chosen sequences exactly once, at most `micro_tokens` tokens per micro-batch, with
    padding.

    A longer sequence is alone in its micro-batch; with `whole` a longer sample is. The longest come first, so that
    too little memory shows at once.
    """
    starts = offsets(sequences)
    if grade is not Grade.PACKED:
        return [
            _lay_out([(0, [_row(sequences, number)]) for unit in units for number in unit], sequences, starts)
            for units in _padded(sequences, _units(sequences, chosen, whole=whole), micro_tokens, grade)
        ]
    packed = sorted(bundles(sequences, chosen, micro_tokens, whole=whole), key=lambda one: one.length, reverse=True)
    batches: list[list[PackedRow]] = []
    room = 0
    for bundle in packed:
        if batches and bundle.length <= room:
            batches[-1] += bundle.rows.values()
        else:
            batches.append([*bundle.rows.values()])
            room = micro_tokens
        room -= bundle.length
    return [_lay_out(_alike(batch), sequences, starts) for batch in batches]


def _row(sequences: Sequence[Sequences], number: int) -> PackedRow:
    return PackedRow(sequences[number].prompt, [number])


def _padded(
    sequences: Sequence[Sequences], units: list[list[int]], micro_tokens: int, grade: Grade
) -> list[list[list[int]]]:
    """The units of each micro-batch, in which every row is as long as the longest."""

    def length(unit: list[int]) -> int:
        return max(len(sequences[number].prompt) + len(sequences[number].response) for number in unit)

    found: list[list[list[int]]] = []
    room = 0  # rows
    for unit in sorted(units, key=length, reverse=True):
        if grade is Grade.ALONE or not found or len(unit) > room:
            found.append([])
            room = micro_tokens // length(unit)
        found[-1].append(unit)
        room -= len(unit)
    return found


def bundles(sequences: Sequence[Sequences], chosen: Sequence[int], micro_tokens: int, *, whole: bool) -> list[Bundle]:
    """Sequences of equal prompts share rows, in the order given. Those of which nothing is learned are left out."""
    found: list[Bundle] = []
    open_bundles: dict[bytes, Bundle] = {}
    for unit in _units(sequences, chosen, whole=whole):
        keyed = [(np.asarray(sequences[number].prompt, np.int64).tobytes(), sequences[number]) for number in unit]
        first = keyed[0][0]
        bundle = open_bundles.get(first)
        if bundle is None or bundle.length + bundle.added(keyed) > micro_tokens:
            bundle = open_bundles[first] = Bundle()
            found.append(bundle)
        bundle.length += bundle.added(keyed)
        for number, (key, sequence) in zip(unit, keyed, strict=True):
            bundle.add(key, number, sequence)
    return found


def _units(sequences: Sequence[Sequences], chosen: Sequence[int], *, whole: bool) -> list[list[int]]:
    """Sequences that have to stay together."""
    units: dict[int, list[int]] = {}
    for number in chosen:
        if sequences[number].size:
            units.setdefault(_sample(sequences, number) if whole else number, []).append(number)
    return list(units.values())


def _sample(sequences: Sequence[Sequences], number: int) -> int:
    sample = sequences[number].sample
    return number if sample is None else sample


def _lay_out(alike: list[tuple[int, list[PackedRow]]], sequences: Sequence[Sequences], starts: Ints) -> MicroBatch:
    """`alike`: rows, and how many tokens they share (`_alike`)."""
    tokens, positions = list[Ints](), list[Ints]()
    bounds, prefixes = list[tuple[int, ...]](), list[tuple[int, int]]()
    predictors, targets, flat, numbers, orders, floors = [], [], [], [], list[Ints](), []
    here = [number for _, rows in alike for row in rows for number in row.sequences]
    floored = any(sequences[number].floors is not None for number in here)
    at = 0

    def put(some: NDArray[Any], position: int) -> int:
        """Returns where they end."""
        tokens.append(np.asarray(some, np.int64))
        positions.append(np.arange(position, position + len(some)))
        return at + len(some)

    for shared, rows in alike:
        prefix = at, at + shared
        if shared:
            bounds.append((at, put(rows[0].prompt[:shared], 0)))
            prefixes.append((0, 0))
            at = prefix[1]
        for row in rows:
            start, length = at, len(row.prompt)
            at = put(row.prompt[shared:], shared)
            bound = [start, at]
            for number in row.sequences:
                sequence, first = sequences[number], at
                at = put(sequence.response, length)
                own = slice(None) if sequence.learned is None else sequence.learned
                predictors.append(np.concatenate([[bound[1] - 1], np.arange(first, at - 1)])[own])
                targets.append(tokens[-1][own])
                flat.append(np.arange(starts[number], starts[number + 1]))
                numbers.append(np.full(sequence.size, _sample(sequences, number)))
                orders.append(np.full(sequence.size, len(orders)))
                if floored:
                    given = sequence.floors
                    floors.append(np.full(sequence.size, -np.inf, np.float32) if given is None else given[own])
                bound.append(at)
            bounds.append(tuple(bound))
            prefixes.append(prefix if shared else (0, 0))
    return MicroBatch(
        np.concatenate(tokens),
        np.concatenate(positions),
        tuple(bounds),
        tuple(prefixes),
        np.concatenate(predictors),
        np.concatenate(targets),
        np.concatenate(flat),
        np.concatenate(numbers),
        np.concatenate(orders),
        tuple(here),
        np.concatenate(floors) if floored else None,
    )


def _alike(group: Sequence[PackedRow]) -> list[tuple[int, list[PackedRow]]]:
    """Rows whose prompts begin alike, and how many tokens they share. Each keeps the last token of its prompt."""
    found: dict[tuple[int, ...], list[PackedRow]] = {}
    for number, row in enumerate(group):
        long = len(row.prompt) > SHARED
        found.setdefault(tuple(row.prompt[:SHARED].tolist()) if long else (number,), []).append(row)
    return [(_shared([row.prompt for row in rows]), rows) for rows in found.values()]


def _shared(prompts: Sequence[NDArray[Any]]) -> int:
    """Tokens with which all begin, without the last of the shortest; 0 if there is nobody to share them with."""
    if len(prompts) == 1:
        return 0
    first, shared = prompts[0], min(map(len, prompts)) - 1
    for prompt in prompts[1:]:
        differ = np.flatnonzero(prompt[:shared] != first[:shared])
        shared = int(differ[0]) if len(differ) else shared
    return shared
