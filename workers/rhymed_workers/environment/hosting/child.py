"""The process with environments: loads the user's tools or classes, then serves requests until its pipe is closed.

Runs in a jail (rhymed_workers.sandbox.jailed), which the pool kills when user code hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from rhymed.core.errors import RowUnsuitable
from rhymed.core.tasks import watched
from rhymed_workers.environment.hosting.runner import REQUEST, Exited, Runner
from rhymed_workers.environment.hosting.tool import Host
from rhymed_workers.environment.protocol import (
    MOST_BYTES,
    Answer,
    Close,
    Moved,
    Open,
    Phase,
    Ready,
    Request,
    Step,
)
from rhymed_workers.sandbox.cleanup import Cleanup
from rhymed_workers.sandbox.frames import claim_pipes, get, limit, put
from rhymed_workers.sandbox.init import redirect_to_null
from rhymed_workers.sandbox.plain import unpacked
from rhymed_workers.sandbox.usercode import ERROR_CHARS, describe

if TYPE_CHECKING:
    from rhymed.core.config import Environment

# Answers the requests of the pool, as many at once as there are, with the user's code.
#
# Each request ends in one `Answer`. What a tool raises is part of it; what an environment raises breaks its sample.


class Serving:
    """`runner`: its `tell` is ours."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._writing = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_copy = False

    def forked(self) -> None:
        """Called in a child that user code has forked: the pipes are the parent's. The child's copies of their
        buffers are discarded; threads that the child does not have may hold their locks."""
        self._is_copy = True
        redirect_to_null(self._requests.fileno(), self._answers.fileno())

    def moved(self, number: int, phase: Phase) -> None:
        if number:
            self._write(msgspec.msgpack.encode(Moved(number, phase)))

    def run(self, host: Host, runner: Runner) -> None:
        """Until the pool closes the pipe."""
        self._host, self._runner = host, runner
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        runner.run()

    def _read(self) -> None:
        """In a thread of its own."""
        while (body := get(self._requests)) is not None:
            request: Request = msgspec.msgpack.decode(body, type=Request)
            self._runner.loop.call_soon_threadsafe(self._begin, request)
        self._runner.stop()

    def _begin(self, request: Request) -> None:
        REQUEST.set(request.number)
        watched(self._serve(request), keep=self._tasks).add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self._tasks:
            self._runner.rested()

    async def _serve(self, request: Request) -> None:
        try:
            answer = await self._answer(request)
            body = msgspec.msgpack.encode(answer)
            if len(body) > MOST_BYTES:
                answer = Answer(request.number, error=f"its answer has {len(body)} bytes: at most {MOST_BYTES}")
                body = msgspec.msgpack.encode(answer)
        except BaseException as error:
            body = msgspec.msgpack.encode(self._failed(request, error))
        self._write(body)

    async def _answer(self, request: Request) -> Answer:
        match request:
            case Open():
                chat, tools = await self._host.open(request)
                return Answer(request.number, chat=chat, tools=tools)
            case Step():
                return Answer(request.number, stepped=await self._host.step(request))
            case Close():
                await self._host.close(request.name)
                return Answer(request.number)

    def _failed(self, request: Request, error: BaseException) -> Answer:
        raised = error.__cause__ if isinstance(error, Exited) and error.__cause__ else error
        words = str(raised) if isinstance(raised, RowUnsuitable) else self._host.explain(raised)
        text = words[:ERROR_CHARS].encode(errors="replace").decode()
        return Answer(request.number, error=text, unsuitable=isinstance(raised, RowUnsuitable))

    def _write(self, body: bytes) -> None:
        if self._is_copy:
            return
        with self._writing:
            put(self._answers, body)


def main() -> None:
    requests, answers = claim_pipes()
    if (body := get(requests)) is None:
        return
    given = unpacked(body)
    settings: Environment = given["settings"]
    limit(resource.RLIMIT_DATA, settings.memory_gib * (1 << 30))  # before user code is imported
    serving, cleanup = Serving(requests, answers), list[Cleanup]()

    def tidy() -> None:
        with contextlib.suppress(Exception):  # files that user code removed or closed
            cleanup[0].restore()

    runner = Runner(settings.timeout_s, serving.moved, tidy)
    os.register_at_fork(after_in_child=runner.forked)
    os.register_at_fork(after_in_child=serving.forked)
    loader = os.getpid()
    try:
        from rhymed_workers.environment.hosting.load import load_host

        host: Any = load_host(settings, runner)
        ready = msgspec.msgpack.encode(Ready(host.kind, host.tools, host.idempotent, host.awaits))
    except BaseException as error:  # whatever a module does when it is imported
        if os.getpid() == loader:
            put(answers, msgspec.msgpack.encode(Ready(error=str(error) or describe(error))))
        return
    if os.getpid() != loader:  # a child that a module forked when it was imported
        return
    limit(resource.RLIMIT_FSIZE, given["file_mib"] << 20)
    limit(resource.RLIMIT_NOFILE, given["open_files"])
    cleanup.append(Cleanup())
    put(answers, ready)
    serving.run(host, runner)
