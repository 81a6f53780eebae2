"""The scoring subprocess: loads the scorers, then answers one item after the other until its parent closes the pipe.

Parent and child speak frames of four length bytes and a MessagePack body over two pipes that user code does not see
(its stdout is stderr). The first frame down is the configuration (JSON), the first one up is `Ready`; then each
`Item` gets its `Answer`: the `Verdict` of the one scorer that it asks, so the parent knows which of them hangs;
SIGUSR1 then makes the child write, as plain text, where it is. Scorers run in the main thread: `signal.alarm` works
there, and only there. The process lives in a cage (rhymed_workers.scoring.jail); the limits of a process are set here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import struct
import time
from array import array
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from rhymed.config import Config, Reward
from rhymed.errors import RewardError
from rhymed.inputs.rows import Row
from rhymed_workers.sandbox import linux
from rhymed_workers.scorers.explain import ERROR_CHARS, describe, overrun
from rhymed_workers.scoring.cleanup import Tidy
from rhymed_workers.scoring.verdict import Verdict

if TYPE_CHECKING:
    from rhymed_workers.scorers.load import RewardFunction

HEAD = struct.Struct("<I")


class Item(msgspec.Struct, frozen=True):
    """What is to be scored, and by which scorer."""

    response: str
    row: str  # JSON object: MessagePack has no integers above 64 bits, rows of reasoning_gym do
    tokens: bytes  # of the response, uint32
    scorer: int = 0  # index in reward.all
    number: int = 0  # of the question, drawn by lot: an answer left behind by user code is none to the next


class Answer(msgspec.Struct, frozen=True):
    """To an `Item`."""

    number: int
    verdict: Verdict
    worn: str = ""  # why this process should get no other item


class Ready(msgspec.Struct, frozen=True):
    """A child's first words: how loading the scorers went, and what it said about itself."""

    error: str | None = None
    notes: list[str] = []


def item(response: str, row: Row, tokens: bytes = b"") -> Item:
    """For `Pool.score`; `tokens` as in `Item`."""
    return Item(response, json.dumps(row, ensure_ascii=False), tokens)


def main() -> None:
    """Load the scorers, then answer items until the parent closes the pipe."""
    requests, answers = _claim_pipes()
    faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
    config = Config.model_validate_json(_get(requests) or b"{}")
    _limit(resource.RLIMIT_DATA, config.reward.memory_gib * (1 << 30))  # before user code is imported
    try:
        from rhymed_workers.scorers.load import load_scorers

        functions = list(load_scorers(config).values())
        notes = [note for function in functions if (note := getattr(function, "note", ""))]
    except BaseException as error:
        _put(answers, msgspec.msgpack.encode(Ready(error=_tell(error))))
        return
    _limit(resource.RLIMIT_FSIZE, config.reward.file_mib << 20)
    _limit(resource.RLIMIT_NOFILE, config.reward.open_files)
    tidy = Tidy()
    _put(answers, msgspec.msgpack.encode(Ready(notes=notes)))
    while (body := _get(requests)) is not None:
        tidy.wake()
        work = msgspec.msgpack.decode(body, type=Item)
        verdict = _judge(functions[work.scorer], work, config.reward)
        answer = Answer(work.number, verdict, tidy.after())
        faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
        _put(answers, msgspec.msgpack.encode(answer))
        tidy.rest()


def _judge(function: RewardFunction, work: Item, limits: Reward) -> Verdict:
    began = time.monotonic()
    try:
        reward = function(work.response, json.loads(work.row), array("I", work.tokens).tolist())
        return Verdict(reward=reward, seconds=time.monotonic() - began)
    except BaseException as error:  # SystemExit and math-verify's TimeoutException are no Exceptions
        late = any(_is_late(one) for one in (error, error.__cause__))
        crowded = 2 * linux.tasks(linux.family([os.getppid()])) > limits.processes_limit
        reason = overrun(error, limits, crowded)
        text = f"{_tell(error)}: {reason}" if reason else _tell(error)
        return Verdict(error=text, timeout=late, seconds=time.monotonic() - began)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutException"


def _claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes out of reach of print and of grandchildren (a duplicate is not inherited)."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _limit(kind: int, most: float) -> None:
    """0: none. Memory is private and writable: a runaway expression gets a MemoryError before the machine suffers."""
    if most:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (int(most) if hard < 0 else min(int(most), hard), hard))


def _tell(error: BaseException) -> str:
    text = str(error) if isinstance(error, RewardError) else describe(error)
    return text[:ERROR_CHARS].encode(errors="replace").decode()


def _get(pipe: BinaryIO) -> bytes | None:
    head = pipe.read(HEAD.size)
    return pipe.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else None


def _put(pipe: BinaryIO, body: bytes) -> None:
    pipe.write(HEAD.pack(len(body)) + body)
    pipe.flush()
