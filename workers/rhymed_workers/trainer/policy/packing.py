"""Packs samples into micro-batches, in numpy. Knows no rewards, no torch and no model.

A row is a prompt followed by the responses of several samples to it, so the prompt is computed once for all of them.
Each response attends to the prompt and itself, not to its siblings, and its positions continue the prompt's: the
outputs are those of separate sequences. The rows of a micro-batch lie end to end, without padding.

Axes: T tokens of the micro-batch, N response tokens of the micro-batch that are learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Sequences(NamedTuple):
    """One sample's tokens."""

    prompt: NDArray[Any]  # (prompt tokens,) at least one
    response: NDArray[Any]  # (response tokens,)
    learned: NDArray[np.bool_] | None = None  # (response tokens,) False: an environment wrote it; None: all True

    @property
    def size(self) -> int:
        """Tokens that are learned."""
        return len(self.response) if self.learned is None else int(self.learned.sum())


@dataclass
class PackedRow:
    prompt: NDArray[Any]
    samples: list[int] = field(default_factory=list)
    length: int = 0  # tokens


@dataclass(frozen=True)
class MicroBatch:
    tokens_T: Ints
    positions_T: Ints  # of a token in its own sequence: prompt and response
    bounds: tuple[tuple[int, ...], ...]  # of each row, in T: its start, the end of its prompt, of its responses
    predictor_N: Ints  # index in T of the token that predicts this response token
    target_N: Ints  # the response token
    flat_N: Ints  # its index among the response tokens of all samples, sample after sample
    sample_N: Ints  # the number of its sample

    @property
    def tokens(self) -> int:
        """Through the model, with prompts."""
        return len(self.tokens_T)


def offsets(samples: Sequence[Sequences]) -> Ints:
    """(samples + 1,): where each sample begins if the learned tokens of all are concatenated."""
    return np.concatenate([[0], np.cumsum([sample.size for sample in samples], dtype=np.int64)])


def micro_batches(samples: Sequence[Sequences], chosen: Sequence[int], micro_tokens: int) -> list[MicroBatch]:
    """Every response token of the chosen samples exactly once, at most `micro_tokens` tokens per micro-batch.

    A longer sample is alone in its micro-batch. The longest rows come first, so that too little memory shows at once.
    """
    starts = offsets(samples)
    packed = sorted(rows(samples, chosen, micro_tokens), key=lambda row: row.length, reverse=True)
    batches: list[list[PackedRow]] = []
    room = 0
    for row in packed:
        if batches and row.length <= room:
            batches[-1].append(row)
        else:
            batches.append([row])
            room = micro_tokens
        room -= row.length
    return [_lay_out(batch, samples, starts) for batch in batches]


def rows(samples: Sequence[Sequences], chosen: Sequence[int], micro_tokens: int) -> list[PackedRow]:
    """Samples of equal prompts share rows, in the order given. Empty responses are left out."""
    packed: list[PackedRow] = []
    open_rows: dict[bytes, PackedRow] = {}
    for number in chosen:
        prompt, response, _ = samples[number]
        if not len(response):
            continue
        key = np.asarray(prompt, np.int64).tobytes()
        row = open_rows.get(key)
        if row is None or row.length + len(response) > micro_tokens:
            row = open_rows[key] = PackedRow(prompt, length=len(prompt))
            packed.append(row)
        row.samples.append(number)
        row.length += len(response)
    return packed


def _lay_out(group: list[PackedRow], samples: Sequence[Sequences], starts: Ints) -> MicroBatch:
    tokens, positions, bounds = [], [], []
    predictors, targets, flat, numbers = [], [], [], []
    at = 0
    for row in group:
        length = len(row.prompt)
        bound = [at, at + length]
        tokens.append(np.asarray(row.prompt, np.int64))
        positions.append(np.arange(length))
        for number in row.samples:
            response = np.asarray(samples[number].response, np.int64)
            first, count = bound[-1], len(response)
            tokens.append(response)
            positions.append(np.arange(length, length + count))
            own = slice(None) if samples[number].learned is None else samples[number].learned
            predictors.append(np.concatenate([[at + length - 1], np.arange(first, first + count - 1)])[own])
            targets.append(response[own])
            flat.append(np.arange(starts[number], starts[number + 1]))
            numbers.append(np.full(samples[number].size, number))
            bound.append(first + count)
        bounds.append(tuple(bound))
        at = bound[-1]
    return MicroBatch(
        np.concatenate(tokens),
        np.concatenate(positions),
        tuple(bounds),
        np.concatenate(predictors),
        np.concatenate(targets),
        np.concatenate(flat),
        np.concatenate(numbers),
    )
