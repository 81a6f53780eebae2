"""From the times of slots and of tools: how many slots are idle while a turn waits, and what a turn costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass
class Turn:
    """Times in seconds, on one clock."""

    ready: float = 0.0  # what comes before it is there: its tool has returned
    asked: float = 0.0  # the worker asked its engine
    taken: float = 0.0  # it has a slot
    freed: float = 0.0
    called: float | None = None  # its tool begins; None: the sample is over


class Idle(NamedTuple):
    """Shares of all slots' time while at least one turn waits."""

    share: float  # of slots without a turn that the waiting turns could have taken
    empty: float  # of slots without a turn
    waiting_s: float  # how long turns waited, whether one or many
    total_s: float  # from the first turn to the last one


def idle(turns: Iterable[Turn], slots: int) -> Idle:
    given = list(turns)
    changes = [(turn.ready, 1, 0) for turn in given]
    changes += [(turn.taken, -1, 1) for turn in given]
    changes += [(turn.freed, 0, -1) for turn in given]
    changes.sort()
    waiting = running = 0
    usable_s = empty_s = waiting_s = 0.0
    last = changes[0][0]
    for at, waits, runs in changes:
        if waiting > 0:
            span, free = at - last, max(0, slots - running)
            waiting_s += span
            empty_s += span * free
            usable_s += span * min(free, waiting)
        waiting, running, last = waiting + waits, running + runs, at
    whole = max(1e-9, waiting_s * slots)
    return Idle(usable_s / whole, empty_s / whole, waiting_s, last - changes[0][0])


def costs(turns: Sequence[Sequence[Turn]]) -> dict[str, float]:
    """Milliseconds, median and 99th percentile, over all samples' turns."""
    found = {
        "tool_to_engine_ms": [turn.asked - turn.ready for sample in turns for turn in sample[1:]],
        "engine_to_tool_ms": [turn.called - turn.freed for sample in turns for turn in sample if turn.called],
        "wait_for_slot_ms": [turn.taken - turn.asked for sample in turns for turn in sample],
    }
    shares = {"median": 50, "p99": 99}
    return {
        f"{name}_{label}": 1000 * float(np.percentile(values, percent))
        for name, values in found.items()
        for label, percent in shares.items()
    }
