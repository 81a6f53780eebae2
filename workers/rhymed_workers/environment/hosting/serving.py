"""Answers the requests of the pool, as many at once as there are, with the user's code.

Each request ends in one `Answer`. What a tool raises is part of it; what an environment raises breaks its sample.
"""

from __future__ import annotations

import asyncio
import threading
from typing import BinaryIO

import msgspec

from rhymed.errors import RowUnsuitable
from rhymed_workers.environment.hosting.host import Host
from rhymed_workers.environment.hosting.runner import REQUEST, Exited, Runner
from rhymed_workers.environment.protocol import (
    MOST_BYTES,
    Answer,
    Close,
    Moved,
    Open,
    Phase,
    Place,
    Reply,
    Request,
    Step,
    Where,
)
from rhymed_workers.scorers.explain import ERROR_CHARS
from rhymed_workers.scoring.frames import get, put


class Serving:
    """`runner`: its `tell` is ours."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._writing = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def moved(self, number: int, phase: Phase) -> None:
        if number:
            self._put(Moved(number, phase))

    def run(self, host: Host, runner: Runner) -> None:
        """Until the pool closes the pipe."""
        self._host, self._runner = host, runner
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        runner.run()

    def _read(self) -> None:
        """A thread of its own: it answers while user code hangs."""
        while (body := get(self._requests)) is not None:
            request: Request = msgspec.msgpack.decode(body, type=Request)
            if isinstance(request, Where):
                self._put(Place(request.number, self._runner.frames(request.number)))
            else:
                self._runner.loop.call_soon_threadsafe(self._begin, request)
        self._runner.stop()

    def _begin(self, request: Open | Step | Close) -> None:
        REQUEST.set(request.number)
        task = self._runner.loop.create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._runner.rested()

    async def _serve(self, request: Open | Step | Close) -> None:
        try:
            answer = await self._answer(request)
            body = msgspec.msgpack.encode(answer)
            if len(body) > MOST_BYTES:
                answer = Answer(request.number, error=f"its answer has {len(body)} bytes: at most {MOST_BYTES}")
                body = msgspec.msgpack.encode(answer)
        except BaseException as error:
            body = msgspec.msgpack.encode(self._failed(request, error))
        self._write(body)

    async def _answer(self, request: Open | Step | Close) -> Answer:
        match request:
            case Open():
                chat, tools = await self._host.open(request)
                return Answer(request.number, chat=chat, tools=tools)
            case Step():
                return Answer(request.number, stepped=await self._host.step(request))
            case Close():
                await self._host.close(request.name)
                return Answer(request.number)

    def _failed(self, request: Open | Step | Close, error: BaseException) -> Answer:
        raised = error.__cause__ if isinstance(error, Exited) and error.__cause__ else error
        words = str(raised) if isinstance(raised, RowUnsuitable) else self._host.explain(raised)
        text = words[:ERROR_CHARS].encode(errors="replace").decode()
        return Answer(request.number, error=text, unsuitable=isinstance(raised, RowUnsuitable))

    def _put(self, reply: Reply) -> None:
        self._write(msgspec.msgpack.encode(reply))

    def _write(self, body: bytes) -> None:
        with self._writing:
            put(self._answers, body)
