"""A complete sample in turns, run by run: who wrote which of its tokens, which calls a turn made, where rows begin.

Pure. Invariant: the runs of a sample are all of its response tokens, in their order. Its calls are kept by answer:
those of turn n are the n-th, if it has one row and as many answers as turns. Otherwise, as with an answer without
tokens between two turns, it has its calls, but no run has them.

`pieces_of_runs` splits its text where drafts and turns begin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import Call, Fork
from rhymed.core.text import call_text, counted
from rhymed.records.history.folder import Decode
from rhymed_store.browse import Response
from rhymed_workers.trainer.turns import problem


class Run(NamedTuple):
    """Consecutive response tokens of one writer."""

    start: int
    end: int
    turn: int  # from 0: this one, or the one that it answers
    environment: bool  # its environment wrote it, else the policy
    calls: Sequence[Call]  # that this turn made
    fork: Fork | None = None  # a row begins here
    reward: float = 0.0  # that it earned, if that is known

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
        reward = _earned(response, end - length, end, None if environment else turn)
        found.append(Run(end - length, end, max(0, turn), environment, calls, forks.get(end - length), reward))
    return found


def _earned(response: Response, start: int, end: int, turn: int | None) -> float:
    """What the run earned of the sample's reward; where the reward is of the sample, what its environment gave."""
    if response.token_rewards:
        return sum(reward for token, reward in response.token_rewards if start <= token < end)
    given = response.info.turn_rewards
    return given[turn] if turn is not None and turn < len(given) else 0.0


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
        earned = f", reward {run.reward:g}" if run.reward else ""
        parts = [
            f"{name}, {counted(run.tokens, 'token')}{earned}",
            *([calls] if calls else []),
            *([fork] if fork else []),
        ]
        yield run, ": ".join(parts)
        called = () if run.environment else run.calls


def unanswered(response: Response) -> Sequence[Call]:
    """Calls of the last turn, if no token of an answer follows it."""
    runs = runs_of(response)
    return runs[-1].calls if runs and not runs[-1].environment else ()


# Splits a response's text where its tokens begin or stop being accepted drafts, and where its turns end. Pure.
#
# Invariant: the pieces concatenated are the whole text. A character of several tokens is never split: it belongs to
# the piece in which it begins.

BEFORE = 8  # preceding tokens that a piece is decoded with: some tokenizers drop a space at a text's start
BROKEN = "\ufffd"  # what the first tokens of a character are decoded to
LONGEST = 4  # bytes of a character, so tokens


class Piece(NamedTuple):
    text: str
    drafted: bool | None  # None: unknown


def pieces_of_runs(
    decode: Decode, tokens: NDArray[np.uint32], drafted: NDArray[np.bool_] | None, runs: Sequence[int]
) -> list[list[Piece]]:
    """For each run of the response; `runs`: where they begin, 0 first. `drafted`: per token; one piece where that is
    unknown. All text is one piece of the first run where it cannot be split."""
    (whole,) = decode([tokens])
    none: list[list[Piece]] = [[] for _ in runs[1:]]
    if not len(tokens) or (drafted is None and not none):
        return [[Piece(whole, None)], *none]
    changes = [] if drafted is None else (np.flatnonzero(drafted[1:] != drafted[:-1]) + 1).tolist()
    starts = whole_characters(decode, tokens, sorted({0, *changes, *runs}))

    def kind(start: int) -> tuple[int, bool | None]:
        return bisect_right(runs, start) - 1, None if drafted is None else bool(drafted[start])

    starts = [0, *(start for last, start in pairwise(starts) if kind(start) != kind(last))]
    texts = cut(decode, tokens, starts)
    if texts is None:
        return [[Piece(whole, None)], *none]
    found: list[list[Piece]] = [[] for _ in runs]
    for (run, draft), text in zip(map(kind, starts), texts, strict=True):
        if text:
            found[run].append(Piece(text, draft))
    return found


def cut(decode: Decode, tokens: NDArray[np.uint32], starts: list[int]) -> list[str] | None:
    """The texts of the parts that begin at these tokens, 0 first; None where they are not the whole text."""
    ends = [*starts[1:], len(tokens)]
    firsts = [max(0, start - BEFORE) for start in starts]
    before = decode([tokens[first:start] for first, start in zip(firsts, starts, strict=True)])
    both = decode([tokens[first:end] for first, end in zip(firsts, ends, strict=True)])
    texts = [text[len(prefix) :] for prefix, text in zip(before, both, strict=True)]
    return texts if "".join(texts) == decode([tokens])[0] else None


def whole_characters(decode: Decode, tokens: NDArray[np.uint32], starts: list[int]) -> list[int]:
    """These starts, each moved behind the character that it lies in; starts of empty pieces are dropped."""
    for _ in range(LONGEST - 1):
        tails = decode([tokens[max(0, start - BEFORE) : start] for start in starts])
        moved = [start + tail.endswith(BROKEN) for start, tail in zip(starts, tails, strict=True)]
        if moved == starts:
            break
        starts = sorted({start for start in moved if start < len(tokens)})
    return starts
