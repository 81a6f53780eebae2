"""One sample whose program runs here: what the program asks, and the policy's turns that answer it.

Invariant: a call is in the store before the policy reads it, and a turn before the program reads it. One call is with
the policy at a time; others wait. A program that was started again gets the turns that its calls had before, as long
as they ask the same; then it goes on with new ones.

`Session` is the sample, and `Call` one call of its program.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from rhymed.core import messages, private
from rhymed.core.config import Config
from rhymed.core.errors import CallRefused, EnvironmentFailed
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import retry
from rhymed.core.tasks import watched
from rhymed.core.text import call_text, counted
from rhymed.inputs.chats import TAIL
from rhymed_store.client import StoreClient
from rhymed_store.sessions import StoredSession, get_session, put_answer
from rhymed_workers.sandbox.jailed import Jailed, ProcessEnded, spawn
from rhymed_workers.sessions.completions import Asked, Written
from rhymed_workers.sessions.dialogue import BEGINNING
from rhymed_workers.sessions.messages import Conversations
from rhymed_workers.sessions.record import Record, Tokens
from rhymed_workers.sessions.speech import Speech

# One program of a user as its session sees it: started in a jail, watched, ended.
#
# Invariant: its environment has no setting of the run, and nothing that it started outlives it.

LAST_BYTES = 1 << 13  # of its output
LAST_LINES = 12
LONGEST_VARIABLE = 1 << 16  # bytes; the kernel takes twice that
OUTPUT_S = 2.0  # for its last words, after it has ended


def command_of(config: Config) -> list[str]:
    """Raises `EnvironmentFailed` for a command that cannot be run."""
    command = config.environment.command
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise EnvironmentFailed(f"environment.command = {command!r}: {error}") from None
    if not words or shutil.which(words[0], path=_path()) is None:
        raise EnvironmentFailed(f"environment.command = {command!r}: there is no program {(words or [''])[0]!r}")
    return words


def _path() -> str:
    """Programs find the Python of the run first, also if its environment is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment_of(base: Mapping[str, str], host: str, given: Mapping[str, str]) -> dict[str, str]:
    """`base`: the worker's. No proxy is asked for `host`."""
    kept = {name: value for name, value in base.items() if not name.startswith("RHYMED_")}
    direct = {name: ",".join(filter(None, [base.get(name), host])) for name in ("NO_PROXY", "no_proxy")}
    return {**kept, **direct, "PATH": _path(), **given}


class Program(Jailed):
    """`ended`: its exit status; negative: a signal."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        limits = config.reward.model_copy(update={"memory_gib": config.environment.memory_gib})
        super().__init__(process, report, limits)
        self._output, self._command = b"", config.environment.command
        self._folder: private.TemporaryFolder | None = None
        self._reading = watched(self._read())
        self.ended = watched(process.wait())

    @classmethod
    async def start(cls, config: Config, words: list[str], row: str, host: str, given: Mapping[str, str]) -> Self:
        """`row`: JSON. Raises `EnvironmentFailed`."""
        settings = config.environment
        program = cls(*await spawn(config.reward, "rhymed_workers.sessions.child"), config)
        try:
            order = {
                "command": words,
                "environment": environment_of(os.environ, host, {**given, "RHYMED_ROW": program._row(row)}),
                "memory_bytes": settings.memory_gib * (1 << 30),
                "file_bytes": config.reward.file_mib << 20,
                "open_files": config.reward.open_files,
            }
            await program.write(json.dumps(order).encode())
        except ProcessEnded:
            raise EnvironmentFailed(await program.explain()) from None
        except BaseException:
            await program.kill()
            raise
        return program

    def _row(self, row: str) -> str:
        """The row itself, or the file that has it."""
        if len(row.encode()) <= LONGEST_VARIABLE:
            return row
        self._folder = private.TemporaryFolder("rhymed-row")
        file = self._folder.path / "row.json"
        file.write_text(row)
        return str(file)

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while part := await stdout.read(1 << 16):
            self._output = (self._output + part)[-LAST_BYTES:]

    async def kill(self) -> None:
        await super().kill()
        await asyncio.wait([self._reading], timeout=OUTPUT_S)
        self._reading.cancel()  # it has ended, unless another process has the program's output open
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    async def explain(self) -> str:
        """How it ended, and its last words."""
        how = await self.explain_end(ProcessEnded("no exit status"))
        return f"{self._command} ended with {how}{self.words()}"

    def words(self) -> str:
        """Its last lines of output, as the end of a sentence."""
        lines = self._output.decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        return f"; its last lines: {' | '.join(lines)}" if lines else ""


log = logging.getLogger(__name__)

START_S = 120.0  # for a program's first call: it imports its libraries, on a loaded machine


class Limits(NamedTuple):
    context: int  # tokens of a row
    turns: int
    timeout_s: float
    command: str


class _Turn(NamedTuple):
    info: messages.Turn
    tokens: list[int]
    logprobs: list[float]
    stop: list[str]  # strings that may have ended it


class Session:
    """`options`: the row's own, of the chat template."""

    def __init__(
        self,
        id: messages.SampleId,
        store: StoreClient,
        speech: Speech,
        limits: Limits,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.token = id, secrets.token_urlsafe(32)
        self.program: Program | None = None
        self.reward: float | None = None
        self.calls: list[Call] = []
        self.counted = 0  # of these, by who counts them
        self.made: list[messages.Call] = []  # with its last answer, as people see it
        self._store, self._speech, self._limits, self._options = store, speech, limits, options or {}
        self._record, self._conversations = Record(), Conversations()
        self._turns: list[_Turn] = []
        self._ready: deque[Call] = deque()
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Call | None = None  # with the policy
        self._made = 0  # calls that were answered, or are with the policy
        self._since = self._answered = time.monotonic()  # when the program had to go on, and could go on last

    def load(self, stored: StoredSession) -> None:
        """What earlier attempts have."""
        for number in range(len(stored.turns)):
            self._add(stored, number, stored.before(number))

    def _add(self, stored: StoredSession, place: int, prompt: Tokens) -> None:
        assert stored.logprobs is not None, "the session was read with log-probs"
        turn, logprobs = stored.turns[place], stored.logprobs[place]
        answer = stored.session.answers[place]
        self._record.add(prompt, turn, answer.most, answer.stop)
        self._turns.append(_Turn(stored.session.turns[place], turn.tolist(), logprobs.tolist(), answer.stop))

    # What the program's connections do

    def call(self, asked: Asked, digest: bytes, retried: bool = False) -> Call:
        """A new call, or the one that this request repeats."""
        if (call := self._same(digest, retried)) is None:
            call = Call(asked, digest, asyncio.get_running_loop().create_future())
            self.calls.append(call)
            watched(self._submit(call), partial(self._unreadable, call), self._tasks)
        return call

    def _same(self, digest: bytes, retried: bool) -> Call | None:
        alike = [call for call in self.calls if call.digest == digest]
        broken = [call for call in alike if call.broken]
        return broken[0] if broken else alike[-1] if alike and retried else None

    async def answer(self, call: Call) -> Written:
        """Raises `CallRefused`."""
        call.waiting += 1
        try:
            written = await asyncio.shield(call.answer)
            call.delivered = True
            return written
        finally:
            call.waiting -= 1

    async def _submit(self, call: Call) -> None:
        try:
            call.prompt = await self._prompt(call.asked)
            if len(call.prompt) >= self._limits.context:
                raise CallRefused(
                    f"This model's maximum context length is {self._limits.context} tokens"
                    " (rollout.max_prompt_length + rollout.max_response_length). However, your request has"
                    f" {len(call.prompt)} tokens, which leave no room for an answer.",
                    code="context_length_exceeded",
                    param="messages",
                )
        except CallRefused as error:
            _refuse(call, error)
            return
        self._ready.append(call)
        self._arrived.set()

    def _unreadable(self, call: Call, error: BaseException) -> None:
        """Refuses the call, since its client would otherwise wait for ever."""
        log.error("sample %s: a call cannot be read", self.id, exc_info=error)
        _refuse(
            call,
            CallRefused("the call cannot be read; the worker's log has the reason", "internal_error", status=500),
        )

    async def _prompt(self, asked: Asked) -> Tokens:
        options = {**self._options, **asked.options}
        if found := self._conversations.continues(asked.prompt_key, asked.messages):
            number, count = found
            before, turn = self._record.end(number), self._turns[number]
            written = turn.tokens[-TAIL:]
            suffix = await self._speech.suffix(asked.messages, count, asked.tools, written, options, turn.stop)
            return np.concatenate([before, np.array(suffix, np.uint32)])
        return np.array(await self._speech.prompt(asked.messages, asked.tools, options), np.uint32)

    # What the worker does

    async def act(self) -> bool:
        """Answers the program until it asks what the policy has to write (False) or has ended (True).

        Raises `EnvironmentFailed`.
        """
        if self._open is not None and not await self._read():
            return False
        self._since = self._answered = time.monotonic()
        while (call := await self._next()) is not None:
            if self._made >= self._limits.turns:
                _refuse(call, self._too_many())
                continue
            self._made += 1
            turn = self._record.ask(call.prompt, call.asked.most, call.asked.stop)
            if turn is None:
                await self._put_call(call)
                return False
            await self._deliver(call, turn)
            self._answered = time.monotonic()
        await self._put_end()
        return True

    async def _read(self) -> bool:
        """The turn that answers the open call. False: the store does not have it."""
        call, number = self._open, len(self._record)
        assert call is not None, "a call is with the policy"
        stored = await retry(lambda: get_session(self._store, self.id, logprobs=True, first=number), "reading a turn")
        if not stored.answers:
            raise EnvironmentFailed("the store does not have its call any more: it went on elsewhere")
        if not stored.turns:
            return False
        self._add(stored, 0, call.prompt)
        self._open = None
        await self._deliver(call, number)
        return True

    async def _next(self) -> Call | None:
        """The next call; None: the program has ended as it should."""
        assert self.program is not None, "the program was started"
        limit_s = self._limits.timeout_s if self._made else max(START_S, self._limits.timeout_s)
        deadline = self._answered + limit_s  # a refusal is no answer: who only asks to be refused is ended, too
        spent = self._made >= self._limits.turns
        while not self.program.ended.done():
            rest_s = deadline - time.monotonic()
            if self._ready and (rest_s > 0 or not spent):
                return self._ready.popleft()
            self._arrived.clear()
            arrived = asyncio.ensure_future(self._arrived.wait())
            try:
                done, _ = await asyncio.wait(
                    {arrived, self.program.ended}, timeout=max(0.0, rest_s), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                arrived.cancel()
            if not done:
                await self.program.kill()
                did = "made no call for"
                if spent:
                    did = f"had its {self._limits.turns} turns (environment.max_turns) and did not end within"
                raise EnvironmentFailed(
                    f"{self._limits.command} {did} {limit_s:g} s (environment.timeout_s) and was ended"
                    f"{self.program.words()}"
                )
        if self.program.ended.result() != 0:
            raise EnvironmentFailed(await self.program.explain())
        return None

    def _too_many(self) -> CallRefused:
        return CallRefused(
            f"this sample has had its {self._limits.turns} turns (environment.max_turns): end with what you have",
            code="max_turns_exceeded",
        )

    async def _put_call(self, call: Call) -> None:
        after, kept, tokens = self._record.continued(call.prompt)
        answer = messages.Answer(
            length=len(tokens),
            after=after,
            kept=kept,
            most=call.asked.most,
            stop=call.asked.stop,
            calls=[self._step()],
        )
        await self._put(answer, tokens)
        self._open = call

    async def _put_end(self) -> None:
        used = {call.turn for call in self.calls if call.delivered}
        if not used - {None}:
            raise EnvironmentFailed(f"{self._limits.command} ended without an answered call")
        unused = [turn for turn in range(len(self._record)) if turn not in used]
        answer = messages.Answer(length=0, done=True, reward=self.reward, unused=unused, calls=[self._step()])
        await self._put(answer, np.zeros(0, np.uint32))

    async def _put(self, answer: messages.Answer, tokens: Tokens) -> None:
        number = len(self._record)
        if not await retry(lambda: put_answer(self._store, self.id, number, answer, tokens), "storing a call"):
            raise EnvironmentFailed("the store has another call: the sample went on elsewhere")
        self.made = answer.calls
        calls = [call_text(call) for call in answer.calls]
        more = cause("answered", [self.id], turns=[number], tokens=[answer.length], calls=[calls])
        log.info("answer %d of sample %s: %s", number, self.id, counted(answer.length, "token"), extra=more)

    def _step(self) -> messages.Call:
        """What the program did, as people see it."""
        return messages.Call(name="program", seconds=time.monotonic() - self._since)

    async def _deliver(self, call: Call, number: int) -> None:
        turn, asked = self._turns[number], call.asked
        name = _name(call.prompt, number)
        tools, before = asked.tools if asked.parse else [], call.prompt[-BEGINNING:].tolist()
        hidden = [] if asked.includes_stop else asked.stop
        message = await self._speech.message(turn.tokens, tools, name, before, hidden)
        pieces: Sequence[str] = await self._speech.pieces(turn.tokens) if asked.logprobs else ()
        self._conversations.add(number, asked.prompt_key, asked.messages, message)
        call.turn = number
        if not call.answer.done():
            prompt = call.prompt.tolist() if asked.token_ids else []
            reason = turn.info.finish_reason
            written = Written(name, prompt, len(call.prompt), turn.tokens, turn.logprobs, reason, message, pieces)
            call.answer.set_result(written)

    async def close(self) -> None:
        """Ends the program."""
        for task in self._tasks:
            task.cancel()
        for call in self.calls:
            call.answer.cancel()
        if self.program is not None:
            await self.program.kill()


def _refuse(call: Call, error: CallRefused) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
        call.answer.exception()  # its connection may have ended


def _name(prompt: Tokens, number: int) -> str:
    return hashlib.blake2b(prompt.tobytes(), digest_size=12, salt=number.to_bytes(8, "little")).hexdigest()


# A call of a program, from its arrival to its answer.


@dataclass(eq=False)
class Call:
    """`digest`: of the request's body."""

    asked: Asked
    digest: bytes
    answer: asyncio.Future[Written]
    prompt: Tokens = field(default_factory=lambda: np.zeros(0, np.uint32))
    turn: int | None = None  # that answers it
    waiting: int = 0  # connections
    delivered: bool = False

    @property
    def refused(self) -> bool:
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None

    @property
    def broken(self) -> bool:
        """Its connection ended before its answer was sent."""
        return not (self.waiting or self.delivered)
