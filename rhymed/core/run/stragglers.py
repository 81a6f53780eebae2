"""Finds the workers that a run waits for, from a snapshot: slow and silent ones, and those that have
not joined. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhymed.core.text import age

if TYPE_CHECKING:
    from rhymed.core.messages import Queues, WorkerRow


RATE = "rollout/tokens_per_s"
SLOW = 1 / 3  # of the median rate
SILENT_S = 5.0
NAMES = (
    ("trainer", "the trainer"),
    ("rollout", "rollout workers"),
    ("environment", "environment workers"),
    ("reward", "reward workers"),
)


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


def has_environments(snapshot: Queues) -> bool:
    """Whether its samples have turns, which environment workers answer."""
    acts = any(snapshot.queues.get(state) for state in ("turned", "acting"))
    return acts or any(row.role == "environment" for row in snapshot.workers)


def shown_states(snapshot: Queues) -> list[str]:
    """Without those that this run has no samples in because it has no environments, or no dynamic sampling."""
    hidden = set() if has_environments(snapshot) else {"turned", "acting"}
    hidden |= set() if snapshot.queues.get("filtered") else {"filtered"}
    return [state for state in snapshot.queues if state not in hidden]


def starting(snapshot: Queues) -> str:
    """The roles of which no worker has joined; empty: none, or the broker reports it as a trouble."""
    if snapshot.finished or any(" is here" in trouble for trouble in snapshot.troubles):
        return ""
    here = {row.role for row in snapshot.workers}
    acts = has_environments(snapshot)
    missing = [name for role, name in NAMES if role not in here and (acts or role != "environment")]
    return (
        f"starting: {', '.join(missing)} {'has' if missing == ['the trainer'] else 'have'} not joined yet"
        if missing
        else ""
    )


def _is_generating(row: WorkerRow) -> bool:
    """Has it a sample in a slot? A brief snapshot only has counts."""
    return row.held > row.parked or any(not sample.parked for sample in row.holding)
