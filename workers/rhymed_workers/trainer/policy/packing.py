"""Packs samples into micro-batches, in numpy. Knows no rewards, no torch and no model.

A row is a prompt followed by the responses of several samples to it, so the prompt is computed once for all of them.
Each response attends to the prompt and itself, not to its siblings, and its positions continue the prompt's: the
outputs are those of separate rows. Rows grow up to `PACK_TOKENS` because attention's cost is quadratic in the row's
length; a longer sample has a row of its own.

Axes: B rows, T tokens of the longest row, N response tokens of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PACK_TOKENS = 1024
PADDING = -1

Ints = NDArray[np.int64]


class Sequences(NamedTuple):
    """One sample's tokens."""

    prompt: NDArray[Any]  # (prompt tokens,) at least one
    response: NDArray[Any]  # (response tokens,)


@dataclass
class PackedRow:
    prompt: NDArray[Any]
    samples: list[int] = field(default_factory=list)
    length: int = 0  # tokens


@dataclass(frozen=True)
class MicroBatch:
    tokens_BT: Ints  # right-padded with 0
    positions_BT: Ints
    segments_BT: Ints  # 0: prompt, k: k-th response of the row, -1: padding
    predictor_N: Ints  # index into the flattened B x T positions of the one that predicts this response token
    target_N: Ints  # the response token
    flat_N: Ints  # its index among the response tokens of all samples, sample after sample
    packed: bool  # a row has more than one response, so attention needs a mask


def offsets(samples: Sequence[Sequences]) -> Ints:
    """(samples + 1,): where each sample's response begins if all responses are concatenated."""
    return np.concatenate([[0], np.cumsum([len(sample.response) for sample in samples], dtype=np.int64)])


def micro_batches(
    samples: Sequence[Sequences], chosen: Sequence[int], micro_tokens: int, pack_tokens: int = PACK_TOKENS
) -> list[MicroBatch]:
    """Every response token of the chosen samples exactly once, at most `micro_tokens` padded tokens per micro-batch.

    A longer row is alone in its micro-batch. The longest rows come first, so that too little memory shows at once.
    """
    starts = offsets(samples)
    packed = sorted(rows(samples, chosen, min(micro_tokens, pack_tokens)), key=lambda row: row.length, reverse=True)
    batches: list[list[PackedRow]] = []
    for row in packed:
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= micro_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [_lay_out(batch, samples, starts) for batch in batches]


def rows(samples: Sequence[Sequences], chosen: Sequence[int], pack_tokens: int) -> list[PackedRow]:
    """Samples of equal prompts share rows, in the order given. Empty responses are left out."""
    packed: list[PackedRow] = []
    open_rows: dict[bytes, PackedRow] = {}
    for number in chosen:
        prompt, response = samples[number]
        if not len(response):
            continue
        key = np.asarray(prompt, np.int64).tobytes()
        row = open_rows.get(key)
        if row is None or row.length + len(response) > pack_tokens:
            row = open_rows[key] = PackedRow(prompt, length=len(prompt))
            packed.append(row)
        row.samples.append(number)
        row.length += len(response)
    return packed


def _lay_out(group: list[PackedRow], samples: Sequence[Sequences], starts: Ints) -> MicroBatch:
    width = max(row.length for row in group)
    tokens, positions = np.zeros((2, len(group), width), np.int64)
    segments = np.full((len(group), width), PADDING, np.int64)
    predictors, targets, flat = [], [], []
    for line, row in enumerate(group):
        at = prompt_length = len(row.prompt)
        tokens[line, :at], positions[line, :at], segments[line, :at] = row.prompt, np.arange(at), 0
        for segment, number in enumerate(row.samples, 1):
            response = np.asarray(samples[number].response, np.int64)
            end = at + len(response)
            tokens[line, at:end], segments[line, at:end] = response, segment
            positions[line, at:end] = np.arange(prompt_length, prompt_length + len(response))
            before = np.concatenate([[prompt_length - 1], np.arange(at, end - 1)])
            predictors.append(line * width + before)
            targets.append(response)
            flat.append(np.arange(starts[number], starts[number + 1]))
            at = end
    return MicroBatch(
        tokens,
        positions,
        segments,
        np.concatenate(predictors),
        np.concatenate(targets),
        np.concatenate(flat),
        any(len(row.samples) > 1 for row in group),
    )
