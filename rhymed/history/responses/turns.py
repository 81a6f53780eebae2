"""A complete sample in turns, run by run: who wrote which of its tokens, which calls a turn made, where rows begin.

Pure. Invariant: the runs of a sample are all of its response tokens, in their order. Its calls are kept by answer:
those of turn n are the n-th, if it has one row and as many answers as turns. Otherwise, as with an answer without
tokens between two turns, it has its calls, but no run has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from rhymed.messages import Call, Fork
from rhymed.text import call_text, counted
from rhymed_store.inspect.browse import Response
from rhymed_workers.trainer.turns import problem


class Run(NamedTuple):
    """Consecutive response tokens of one writer."""

    start: int
    end: int
    turn: int  # from 0: this one, or the one that it answers
    environment: bool  # its environment wrote it, else the policy
    calls: Sequence[Call]  # that this turn made
    fork: Fork | None = None  # a row begins here

    @property
    def tokens(self) -> int:
        return self.end - self.start


def runs_of(response: Response) -> list[Run]:
    """Empty: it has no turns, or they do not fit its tokens."""
    info = response.info
    if not info.turns or problem(info):
        return []
    placed = are_placed(response)
    forks = {fork.start: fork for fork in info.forks}
    found: list[Run] = []
    turn = -1
    for place, (length, end) in enumerate(zip(info.turns, accumulate(info.turns), strict=True)):
        if not length:
            continue
        environment = bool(place % 2)
        turn += not environment
        calls = response.calls[turn] if placed and not environment else ()
        found.append(Run(end - length, end, max(0, turn), environment, calls, forks.get(end - length)))
    return found


def are_placed(response: Response) -> bool:
    """Whether each run of the policy is a turn, and has its calls: rows may interleave, and turns may be left out."""
    info = response.info
    return not info.forks and len(response.calls) == sum(map(bool, info.turns[::2]))


def loose(response: Response) -> list[Call]:
    """Calls of the sample that no run has."""
    return [] if are_placed(response) else made(response)


def made(response: Response) -> list[Call]:
    """All calls of the sample, in their order."""
    return [call for calls in response.calls for call in calls]


def summary(response: Response) -> str:
    """`2 turns, 1 call, 22 of its tokens from its environment`; empty: it has no environment."""
    info, calls = response.info, made(response)
    if not info.turns:
        return ""
    errors = sum(bool(call.error) for call in calls)
    parts = [
        counted(info.turn_count, "turn"),
        *([counted(len(info.forks) + 1, "row")] if info.forks else []),
        *([f"{counted(len(calls), 'call')}{f' ({errors} failed)' if errors else ''}"] if calls else []),
        *([f"{info.length - info.learned:,} of its tokens from its environment"] if len(info.turns) > 1 else []),
        *([] if info.earned is None else [f"{info.earned:g} earned"]),
    ]
    return ", ".join(parts)


def fork_text(run: Run, forks: Sequence[Fork]) -> str:
    """Empty: no row begins with this run. Rows count from 1 for people."""
    if run.fork is None:
        return ""
    number = bisect_right([fork.start for fork in forks], run.start) + 1
    return f"row {number} begins: after the first {counted(run.fork.shared, 'token')} of row {run.fork.row + 1}"


def titled(response: Response) -> Iterator[tuple[Run, str]]:
    """Every run with a line of text before it: what it is, and what the turn before it called."""
    runs = runs_of(response)
    called: Sequence[Call] = ()
    for run in runs:
        name = "environment" if run.environment else f"turn {run.turn + 1}"
        calls = "; ".join(map(call_text, called)) if run.environment else ""
        fork = fork_text(run, response.info.forks)
        parts = [f"{name}, {counted(run.tokens, 'token')}", *([calls] if calls else []), *([fork] if fork else [])]
        yield run, ": ".join(parts)
        called = () if run.environment else run.calls


def unanswered(response: Response) -> Sequence[Call]:
    """Calls of the last turn, if no token of an answer follows it."""
    runs = runs_of(response)
    return runs[-1].calls if runs and not runs[-1].environment else ()
