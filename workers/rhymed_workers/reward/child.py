"""The scoring process: loads the scorers, then does one piece of work after another until its pool closes the pipe.

The pool (rhymed_workers.reward.process) and this process exchange frames of four length bytes and a MessagePack body
over two pipes that user code does not see (its stdout is stderr). The first frame down is the settings (JSON),
the first one up is `Ready`. Then each `Work` names one scorer and gets an `Answer` with its verdicts, so the pool
knows which scorer hangs. Scorers run in the main thread, the only one in which `signal.alarm` works. The limits of
one process are set here, those of all in the jail (rhymed_workers.sandbox.jail).
"""

from __future__ import annotations

import json
import os
import resource
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rhymed.core.errors import NotPlayed, RewardError, RowUnsuitable
from rhymed.inputs.rows import Row
from rhymed_workers.reward.scorers.result import Verdict
from rhymed_workers.reward.scorers.setting import Response, Setting
from rhymed_workers.sandbox import linux
from rhymed_workers.sandbox.cleanup import Cleanup
from rhymed_workers.sandbox.frames import claim_pipes, get, limit, put
from rhymed_workers.sandbox.plain import unpacked
from rhymed_workers.sandbox.usercode import ERROR_CHARS, describe, overrun

if TYPE_CHECKING:
    from rhymed.core.config import Reward
    from rhymed_workers.reward.scorers.load import RewardFunction


class Item(msgspec.Struct, frozen=True):
    """A response to score."""

    response: str
    row: str  # JSON object: MessagePack has no integers above 64 bits, rows of reasoning_gym do
    tokens: bytes  # of the response, uint32
    step: int = 0  # steps that were trained before its own
    turn_ends: tuple[int, ...] = (0,)  # the last token of each turn of the policy


class Work(msgspec.Struct, frozen=True):
    """One response, or all of a group for a scorer that is called with whole groups."""

    items: list[Item]
    scorer: int  # index in reward.all
    number: int  # random: the answer repeats it, so user code cannot answer later work in advance


class Answer(msgspec.Struct, frozen=True):
    number: int  # of the `Work`
    verdicts: list[Verdict]  # of each item
    defect: str = ""  # why this process must not get more work


class Ready(msgspec.Struct, frozen=True):
    """First frame of the scoring process: whether the scorers are loaded, and what they report about themselves."""

    error: str | None = None
    notes: list[str] = []
    warnings: list[str] = []
    whole: list[int] = []  # scorers that get all samples of a group in one call


def item(response: str, row: Row, tokens: bytes = b"", step: int = 0, turn_ends: Sequence[int] | None = None) -> Item:
    """Argument of `Pool.score`. `tokens`, `step`, `turn_ends` as in `Item`; None: it has one turn."""
    ends = (max(0, len(tokens) // 4 - 1),) if turn_ends is None else tuple(turn_ends)
    return Item(response, json.dumps(row, ensure_ascii=False), tokens, step, ends)


def main() -> None:
    """Load the scorers, then answer items until the pool closes the pipe."""
    requests, answers = claim_pipes()
    if (body := get(requests)) is None:
        return
    given = unpacked(body)
    limits: Reward = given["reward"]
    limit(resource.RLIMIT_DATA, limits.memory_gib * (1 << 30))  # before user code is imported
    try:
        from rhymed_workers.reward.scorers.load import load_scorer

        each = zip(given["scorers"], given["named"], strict=True)
        functions = [
            load_scorer(Setting(scorer, label, key, limits, given["datasets"], **given["shared"]))
            for scorer, (label, key) in each
        ]
        notes = [function.note for function in functions if function.note]
        warnings = [function.warning for function in functions if function.warning]
    except BaseException as error:
        reason = overrun(error, limits, crowded=False)
        text = f"{_in_words(error)}: {reason}" if reason else _in_words(error)
        put(answers, msgspec.msgpack.encode(Ready(error=text)))
        return
    limit(resource.RLIMIT_FSIZE, limits.file_mib << 20)
    limit(resource.RLIMIT_NOFILE, limits.open_files)
    cleanup = Cleanup()
    whole = [place for place, function in enumerate(functions) if function.whole]
    put(answers, msgspec.msgpack.encode(Ready(notes=notes, warnings=warnings, whole=whole)))
    while (body := get(requests)) is not None:
        cleanup.end_wait()
        work = msgspec.msgpack.decode(body, type=Work)
        answer = Answer(work.number, _judge(functions[work.scorer], work, limits), cleanup.run())
        put(answers, msgspec.msgpack.encode(answer))
        cleanup.begin_wait()


def _judge(function: RewardFunction, work: Work, limits: Reward) -> list[Verdict]:
    began = time.monotonic()
    try:
        results = function.score(
            [
                Response(one.response, json.loads(one.row), array("I", one.tokens).tolist(), one.step, one.turn_ends)
                for one in work.items
            ]
        )
        share_s = (time.monotonic() - began) / len(work.items)
        return [_verdict(result, share_s) for result in results]
    except BaseException as error:  # SystemExit and math-verify's TimeoutException are not Exceptions
        late = any(_is_late(raised) for raised in (error, error.__cause__))
        crowded = 2 * linux.tasks(linux.family([os.getppid()])) > limits.processes_limit
        reason = overrun(error, limits, crowded)
        text = f"{_in_words(error)}: {reason}" if reason else _in_words(error)
        failed = Verdict(
            error=text,
            unsuitable=isinstance(error, RowUnsuitable),
            unplayed=isinstance(error, NotPlayed),
            timeout=late,
            seconds=(time.monotonic() - began) / len(work.items),
        )
        return [failed] * len(work.items)


def _verdict(result: Verdict | RewardError | None, seconds: float) -> Verdict:
    if isinstance(result, RewardError):
        return Verdict(error=_in_words(result), seconds=seconds)
    return msgspec.structs.replace(result or Verdict(), seconds=seconds)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutException"


def _in_words(error: BaseException) -> str:
    text = str(error) if isinstance(error, RewardError) else describe(error)
    return text[:ERROR_CHARS].encode(errors="replace").decode()
