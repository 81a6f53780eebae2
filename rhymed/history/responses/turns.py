"""A complete sample in turns, run by run: who wrote which of its tokens, which calls a turn made, where rows begin.

Pure. Invariant: the runs of a sample that fits are all of its response tokens, in their order. Its calls are kept by
answer: those of turn n are the n-th, if there are as many as turns. Otherwise, as with an answer without tokens
between two turns, the sample has its calls, but no turn has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from rhymed.messages import Call, Fork, SampleInfo
from rhymed.text import counted, duration
from rhymed_store.inspect.browse import Response


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
    if not info.turns or misfit(info):
        return []
    placed = len(response.calls) == turns_in(info)
    forks = {fork.start: fork for fork in info.forks}
    ends = list(accumulate(info.turns))
    return [
        Run(
            start=end - length,
            end=end,
            turn=place // 2,
            environment=bool(place % 2),
            calls=response.calls[place // 2] if placed and not place % 2 else (),
            fork=forks.get(end - length),
        )
        for place, (length, end) in enumerate(zip(info.turns, ends, strict=True))
    ]


def misfit(info: SampleInfo) -> str:
    """Why its turns and rows cannot be those of its tokens; empty: they can."""
    if not info.turns:
        return "it has rows, but no turns" if info.forks else ""
    if min(info.turns) <= 0:
        return f"a run of its turns has {min(info.turns)} tokens"
    if sum(info.turns) != info.length:
        return f"its turns have {sum(info.turns)} tokens, its response {info.length}"
    starts = [0, *accumulate(info.turns)][:-1]
    last, lengths = 0, [info.prompt_length]
    for number, fork in enumerate(info.forks, 1):
        lengths[-1] += fork.start - last
        if fork.start <= last or fork.start not in starts:
            return f"its row {number} begins at token {fork.start}, where no later run of its turns begins"
        if fork.row >= number or fork.shared > lengths[fork.row]:
            return f"its row {number} shares {fork.shared} tokens with row {fork.row}, which has fewer or comes later"
        last = fork.start
        lengths.append(fork.shared)
    return ""


def turns_in(info: SampleInfo) -> int:
    return (len(info.turns) + 1) // 2


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
        counted(turns_in(info), "turn"),
        *([counted(len(info.forks) + 1, "row")] if info.forks else []),
        *([f"{counted(len(calls), 'call')}{f' ({errors} failed)' if errors else ''}"] if calls else []),
        *([f"{info.length - info.learned:,} of its tokens from its environment"] if len(info.turns) > 1 else []),
        *([] if info.earned is None else [f"{info.earned:g} earned"]),
    ]
    return ", ".join(parts)


def call_text(call: Call) -> str:
    """`calculate 3 ms`, with its error."""
    ms = 1000 * call.seconds
    spent = f" {ms:.1f} ms" if ms < 10 else f" {ms:.0f} ms" if ms < 1000 else f" {duration(call.seconds)}"
    return f"{call.name}{spent * (ms > 0)}{f', failed: {call.error}' if call.error else ''}"


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
