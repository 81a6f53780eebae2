"""Which rank computes which micro-batches. Pure.

A forward pass of a sharded model is an exchange between all ranks, so each has to make the same number of them. Where
micro-batches do not suffice, a rank repeats a small one, of which nothing counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rhymed_workers.trainer.policy.packing import MicroBatch


class Turn(NamedTuple):
    """One forward pass of a rank."""

    batch: MicroBatch
    counts: bool = True


def shares(batches: Sequence[MicroBatch], ranks: int) -> list[list[Turn]]:
    """Every micro-batch is in one rank's share, and all shares are equally long.

    The largest one first, each to the rank with the fewest tokens that has room, so that shares take equally long.
    """
    found: list[list[Turn]] = [[] for _ in range(ranks)]
    if not batches:
        return found
    length, tokens = -(-len(batches) // ranks), [0] * ranks
    for batch in sorted(batches, key=lambda batch: -batch.tokens):
        rank = min((rank for rank in range(ranks) if len(found[rank]) < length), key=lambda rank: tokens[rank])
        found[rank].append(Turn(batch))
        tokens[rank] += batch.tokens
    filler = Turn(min(batches, key=lambda batch: batch.tokens), counts=False)
    return [share + [filler] * (length - len(share)) for share in found]
