"""Packs sequences into micro-batches, in numpy. Knows no rewards, no torch and no model.

A row is a prompt followed by several responses to it, so the prompt is computed once for all of them. Each response
attends to the prompt and itself, not to its siblings, and its positions continue the prompt's: the outputs are those
of separate sequences. The rows of a micro-batch lie end to end, without padding. Where several of its prompts begin
alike (a system prompt, the description of tools), their common beginning is a row of its own, which they see.

A sample is one sequence, or several if its conversation was rewritten. Where a loss needs whole samples (`whole`), a
sample's sequences are in one micro-batch.

Axes: T tokens of the micro-batch, N response tokens of the micro-batch that are learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SHARED = 16
"""Tokens, at least, with which prompts begin alike to share them: each shared beginning is more attention blocks."""


class Sequences(NamedTuple):
    """A sample's tokens as the model reads them, or one of its several sequences."""

    prompt: NDArray[Any]  # (prompt tokens,) at least one
    response: NDArray[Any]  # (response tokens,)
    learned: NDArray[np.bool_] | None = None  # (response tokens,) False: an environment wrote it; None: all True
    sample: int | None = None  # number of its sample; None: the number of the sequence

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
    sequences: tuple[int, ...]  # the numbers of its sequences, in its order

    @property
    def tokens(self) -> int:
        """Through the model, with prompts."""
        return len(self.tokens_T)


def offsets(sequences: Sequence[Sequences]) -> Ints:
    """(sequences + 1,): where each begins if the learned tokens of all are concatenated."""
    return np.concatenate([[0], np.cumsum([one.size for one in sequences], dtype=np.int64)])


def micro_batches(
    sequences: Sequence[Sequences], chosen: Sequence[int], micro_tokens: int, *, whole: bool = False
) -> list[MicroBatch]:
    """Every learned token of the chosen sequences exactly once, at most `micro_tokens` tokens per micro-batch.

    A longer sequence is alone in its micro-batch; with `whole` a longer sample is. The longest come first, so that
    too little memory shows at once.
    """
    starts = offsets(sequences)
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
    return [_lay_out(batch, sequences, starts) for batch in batches]


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


def _lay_out(group: list[PackedRow], sequences: Sequence[Sequences], starts: Ints) -> MicroBatch:
    tokens, positions = list[Ints](), list[Ints]()
    bounds, prefixes = list[tuple[int, ...]](), list[tuple[int, int]]()
    predictors, targets, flat, numbers = [], [], [], []
    at = 0

    def put(some: NDArray[Any], position: int) -> int:
        """Returns where they end."""
        tokens.append(np.asarray(some, np.int64))
        positions.append(np.arange(position, position + len(some)))
        return at + len(some)

    for shared, rows in _alike(group):
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
        tuple(number for _, rows in _alike(group) for row in rows for number in row.sequences),
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
