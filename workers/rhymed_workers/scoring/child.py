"""The scoring process: loads the scorers, then answers one item after another until its pool closes the pipe.

The pool (rhymed_workers.reward.process) and this process exchange frames of four length bytes and a MessagePack body
over two pipes that user code does not see (its stdout is stderr). The first frame down is the configuration (JSON),
the first one up is `Ready`. Then each `Item` names one scorer and gets an `Answer` with its `Verdict`, so the pool
knows which scorer hangs; at SIGUSR1 the process writes its traceback as plain text. Scorers run in the main thread,
the only one in which `signal.alarm` works. The limits of one process are set here, those of all in the jail
(rhymed_workers.scoring.jail).
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import time
from array import array
from typing import TYPE_CHECKING

import msgspec

from rhymed.config import Config, Reward
from rhymed.errors import RewardError, RowUnsuitable
from rhymed.inputs.rows import Row
from rhymed_workers.sandbox import linux
from rhymed_workers.scorers.explain import ERROR_CHARS, describe, overrun
from rhymed_workers.scoring.cleanup import Cleanup
from rhymed_workers.scoring.frames import claim_pipes, get, limit, put
from rhymed_workers.scoring.verdict import Verdict

if TYPE_CHECKING:
    from rhymed_workers.scorers.load import RewardFunction


class Item(msgspec.Struct, frozen=True):
    """A response to score, and by which scorer."""

    response: str
    row: str  # JSON object: MessagePack has no integers above 64 bits, rows of reasoning_gym do
    tokens: bytes  # of the response, uint32
    scorer: int = 0  # index in reward.all
    number: int = 0  # random: the answer repeats it, so user code cannot answer a later item in advance


class Answer(msgspec.Struct, frozen=True):
    number: int  # of the `Item`
    verdict: Verdict
    defect: str = ""  # why this process must not get another item


class Ready(msgspec.Struct, frozen=True):
    """First frame of the scoring process: whether the scorers are loaded, and what they report about themselves."""

    error: str | None = None
    notes: list[str] = []
    warnings: list[str] = []


def item(response: str, row: Row, tokens: bytes = b"") -> Item:
    """Argument of `Pool.score`. `tokens` as in `Item`."""
    return Item(response, json.dumps(row, ensure_ascii=False), tokens)


def main() -> None:
    """Load the scorers, then answer items until the pool closes the pipe."""
    requests, answers = claim_pipes()
    faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
    config = Config.model_validate_json(get(requests) or b"{}")
    limit(resource.RLIMIT_DATA, config.reward.memory_gib * (1 << 30))  # before user code is imported
    try:
        from rhymed_workers.scorers.load import load_scorers

        functions = list(load_scorers(config).values())
        notes, warnings = (
            [text for function in functions if (text := getattr(function, name, ""))] for name in ("note", "warning")
        )
    except BaseException as error:
        reason = overrun(error, config.reward, crowded=False)
        text = f"{_in_words(error)}: {reason}" if reason else _in_words(error)
        put(answers, msgspec.msgpack.encode(Ready(error=text)))
        return
    limit(resource.RLIMIT_FSIZE, config.reward.file_mib << 20)
    limit(resource.RLIMIT_NOFILE, config.reward.open_files)
    cleanup = Cleanup()
    put(answers, msgspec.msgpack.encode(Ready(notes=notes, warnings=warnings)))
    while (body := get(requests)) is not None:
        cleanup.end_wait()
        work = msgspec.msgpack.decode(body, type=Item)
        answer = Answer(work.number, _judge(functions[work.scorer], work, config.reward), cleanup.run())
        faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
        put(answers, msgspec.msgpack.encode(answer))
        cleanup.begin_wait()


def _judge(function: RewardFunction, work: Item, limits: Reward) -> Verdict:
    began = time.monotonic()
    try:
        result = function(work.response, json.loads(work.row), array("I", work.tokens).tolist())
        seconds = time.monotonic() - began
        return Verdict(seconds=seconds) if result is None else Verdict(**result._asdict(), seconds=seconds)
    except BaseException as error:  # SystemExit and math-verify's TimeoutException are not Exceptions
        late = any(_is_late(raised) for raised in (error, error.__cause__))
        crowded = 2 * linux.tasks(linux.family([os.getppid()])) > limits.processes_limit
        reason = overrun(error, limits, crowded)
        text = f"{_in_words(error)}: {reason}" if reason else _in_words(error)
        unsuitable, seconds = isinstance(error, RowUnsuitable), time.monotonic() - began
        return Verdict(error=text, unsuitable=unsuitable, timeout=late, seconds=seconds)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutException"


def _in_words(error: BaseException) -> str:
    text = str(error) if isinstance(error, RewardError) else describe(error)
    return text[:ERROR_CHARS].encode(errors="replace").decode()
