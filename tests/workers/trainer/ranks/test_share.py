from __future__ import annotations

import numpy as np
import pytest

from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.ranks import ALONE, shares


def batches(lengths: list[int]) -> list[MicroBatch]:
    """Each alone in its micro-batch."""
    given = [Sequences(np.array([number, 1]), np.arange(length)) for number, length in enumerate(lengths)]
    return micro_batches(given, range(len(given)), 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9])
def test_each_counts_once_and_every_rank_makes_as_many_passes(ranks: int, count: int) -> None:
    given = batches([5 + 3 * number for number in range(count)])
    found = shares(given, ranks)
    assert len({len(share) for share in found}) == 1
    counted = [id(turn.batch) for share in found for turn in share if turn.counts]
    assert sorted(counted) == sorted(map(id, given))
    smallest = min((batch.tokens for batch in given), default=0)
    assert all(turn.batch.tokens == smallest for share in found for turn in share if not turn.counts)


def test_tokens_are_balanced() -> None:
    found = shares(batches([100, 90, 50, 40, 10, 10]), 2)
    tokens = [sum(turn.batch.tokens for turn in share) for share in found]
    assert max(tokens) - min(tokens) <= 2 * 10


def test_one_rank_makes_them_in_the_order_given() -> None:
    given = batches([1, 3, 2])
    assert [turn.batch for turn in ALONE.share(given)] == given
