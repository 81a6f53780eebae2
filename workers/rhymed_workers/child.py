"""The scoring subprocess: loads the scorer, then answers one item after the other until its parent closes the pipe.

Parent and child speak frames of four length bytes and a MessagePack body over two pipes that user code does not see
(its stdout is stderr). The first frame down is the configuration (JSON), the first one up is `Ready`; then each
`Item` is answered by one `Outcome`. The scorer runs in the main thread: `signal.alarm` works there, and only there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time
from typing import BinaryIO

import msgspec

from rhymed.config import Config
from rhymed.data import Row
from rhymed.errors import RewardError

ERROR_CHARS = 2000
PR_SET_PDEATHSIG = 1
HEAD = struct.Struct("<I")


class Item(msgspec.Struct, frozen=True):
    """What is to be scored."""

    response: str
    row: str  # JSON object: MessagePack has no integers above 64 bits, rows of reasoning_gym do


class Outcome(msgspec.Struct, frozen=True):
    """Exactly one of reward and error is given."""

    reward: float | None = None
    error: str | None = None
    timeout: bool = False
    seconds: float = 0.0  # of scoring alone


class Ready(msgspec.Struct, frozen=True):
    """A child's first words: how loading the scorer went."""

    error: str | None = None


def item(response: str, row: Row) -> Item:
    return Item(response, json.dumps(row, ensure_ascii=False))


def main() -> None:
    """Load the scorer, then answer items until the parent closes the pipe."""
    requests, answers = _claim_pipes()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    config = Config.model_validate_json(_get(requests) or b"{}")
    _limit_memory(config.reward.memory_gib)
    try:
        from rhymed_workers.scorers import load_scorer

        scorer = load_scorer(config)
    except BaseException as error:
        _put(answers, msgspec.msgpack.encode(Ready(error=_tell(error))))
        return
    _put(answers, msgspec.msgpack.encode(Ready()))
    while (body := _get(requests)) is not None:
        work = msgspec.msgpack.decode(body, type=Item)
        began = time.monotonic()
        try:
            reward = scorer(work.response, json.loads(work.row))
            outcome = Outcome(reward=reward, seconds=time.monotonic() - began)
        except BaseException as error:  # SystemExit and math-verify's TimeoutException are no Exceptions
            late = isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutException"
            outcome = Outcome(error=_tell(error), timeout=late, seconds=time.monotonic() - began)
        signal.alarm(0)  # an alarm that user code left behind would kill an idle child
        _put(answers, msgspec.msgpack.encode(outcome))


def _claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes out of reach of print and of grandchildren (a duplicate is not inherited)."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _limit_memory(gib: float) -> None:
    """Of private writable memory: a runaway expression gets a MemoryError before the machine gets into trouble."""
    if gib:
        size = int(gib * (1 << 30))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard < 0 else min(size, hard), hard))


def _tell(error: BaseException) -> str:
    try:
        text = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
    except Exception:  # user code may have broken its own __str__
        text = type(error).__name__
    return text[:ERROR_CHARS].encode(errors="replace").decode()


def _get(pipe: BinaryIO) -> bytes | None:
    head = pipe.read(HEAD.size)
    return pipe.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else None


def _put(pipe: BinaryIO, body: bytes) -> None:
    pipe.write(HEAD.pack(len(body)) + body)
    pipe.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: nobody to tell
        main()
