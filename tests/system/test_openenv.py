"""A run whose environments are on an OpenEnv server has the samples of the plain one, whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.stress.faults import FaultSchedule
from tests.stress.recovery import Throughput
from tests.stress.run import LiveRun
from tests.system.test_turns import PLAIN, SAMPLES, Injector, assert_same, assert_whole, merged, plain, reported
from tests.system.turns import write

FEW = 4
KILLED = ("environment", "tool", "rollout", "broker", "store", "environment")
SCHEMA = {
    "title": "look",
    "description": "Looks.",
    "type": "object",
    "properties": {"key": {"type": "string"}},
    "required": ["key"],
}


class Boxes:
    """What a session's box answers depends on its seed, and on everything that it was asked before."""

    def __init__(self) -> None:
        self.sessions = 0

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": SCHEMA, "observation": {}, "state": {}})

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sessions += 1
        box = 0
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            asked = json.loads(message.data)
            if asked["type"] == "close":
                break
            if asked["type"] == "reset":
                box = asked["data"]["seed"] % 97
                seen: dict[str, Any] = {"observation": {"text": f"It has {box}."}, "reward": None, "done": False}
            else:
                box = (box * 3 + zlib.crc32(asked["data"]["key"].encode())) % 1000
                seen = {"observation": {"text": f"{box}"}, "reward": box / 1000, "done": False}
            await socket.send_str(json.dumps({"type": "observation", "data": seen}))
        return socket


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Boxes]]:
    """In a thread: the run is waited for in this one."""
    boxes, started, address = Boxes(), threading.Event(), list[str]()
    ended: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/schema", boxes.schema)
        app.router.add_get("/ws", boxes.socket)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"ws://127.0.0.1:{runner.addresses[0][1]}")
        ended.append((asyncio.get_running_loop(), asyncio.Event()))
        started.set()
        await ended[0][1].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield address[0], boxes
    finally:
        loop, event = ended[0]
        loop.call_soon_threadsafe(event.set)
        thread.join(30)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_run_with_a_server_is_the_same_when_its_processes_die(tmp_path: Path) -> None:
    with served() as (url, boxes):
        engine = {
            "rollout": {"engine": "trace", "max_response_length": 600},
            "trace": {"tools": ["look"], "mean_length": 15, "step_s": 0.002, "token_s": 0.0001},
            "trainer": {"engine": "trace"},
            "environment": {"url": url, "action": "tool", "workers": 2},
        }
        _, first = plain(write(tmp_path, "plain", FEW, **merged(engine, PLAIN)))
        calm = boxes.sessions
        busy = merged(engine, {"rollout": {"workers": 2}, "trace": {"step_s": 0.01, "train_s": 0.3}})
        with LiveRun(write(tmp_path, "sieged", FEW, **busy)) as run:
            faults = FaultSchedule(3, len(KILLED), 0.5, KILLED)
            outcome = asyncio.run(Injector(run, faults, Throughput([])).run())
        assert (run.status, outcome.gave_up) == (0, []), run.tail(20)
        other = reported(run)
        assert_same(first, other, FEW)
        assert sum(sample.earned is not None for sample in other.values()) > FEW * SAMPLES / 2
        assert boxes.sessions - calm > calm, "environments were rebuilt"
        assert_whole(run, FEW)
