"""Finds the rollout workers that hold up the others, from a snapshot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhymed.text import age

if TYPE_CHECKING:
    from rhymed.messages import Queues, WorkerRow


RATE = "rollout/tokens_per_s"
SLOW = 1 / 3  # of the median rate
SILENT_S = 5.0


def stragglers(snapshot: Queues) -> dict[str, str]:
    """What is wrong with each worker that holds up the others, by name."""
    from statistics import median

    busy = [row for row in snapshot.workers if row.role == "rollout" and _is_generating(row)]
    problems = {}
    usual = median([row.stats.get(RATE, 0.0) for row in busy]) if len(busy) > 1 else 0.0
    for row in busy:
        rate = row.stats.get(RATE, 0.0)
        if row.silent_s > SILENT_S:
            problems[row.worker] = f"silent for {age(row.silent_s)}"
        elif rate < SLOW * usual:
            problems[row.worker] = (
                f"{usual / rate:.0f} times slower than its peers" if rate else "generates no tokens"
            )
    return problems


def _is_generating(row: WorkerRow) -> bool:
    """Has it a sample in a slot? A brief snapshot only has counts."""
    return row.held > row.parked or any(not sample.parked for sample in row.holding)
