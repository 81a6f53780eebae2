"""Sessions with a real server that is full, away, slow or broken."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from rhymed.core.errors import EnvironmentFailed
from rhymed_workers.environment.openenv import Refused, Server
from tests.ports import free_ports
from tests.workers.environment.openenv.servers import GUESS, SAY, playing

RESET: dict[str, Any] = {"type": "reset", "data": {"secret": 7}}


def step(said: Any) -> dict[str, Any]:
    return {"type": "step", "data": {"message": said}}


async def test_a_session_answers_each_message() -> None:
    async with playing(GUESS) as game:
        server = Server(game.url.replace("ws://", "http://"))
        assert (await server.schema(5.0))["title"] == "GuessAction"
        session, answer = await server.session(5.0, RESET)
        assert answer["observation"]["hint"] == "Guess from 1 to 9."
        assert (await session.ask(step("3")))["reward"] == -0.25
        assert (await session.ask(step("7")))["done"] is True
        with pytest.raises(Refused, match="number: Input should be a valid integer"):
            await session.ask(step("seven"))
        await session.close()
        await server.close()
        async with asyncio.timeout(10):
            while game.open:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("raise", "EXECUTION_ERROR: the board is on fire"),
        ("vanish", "its session is lost"),
        ("nonsense", "it says what OpenEnv does not: '"),
    ],
)
async def test_a_broken_session_is_a_sentence(said: str, why: str) -> None:
    async with playing(SAY) as game:
        server = Server(game.url)
        session, _ = await server.session(5.0, RESET)
        with pytest.raises(EnvironmentFailed, match=why):
            await session.ask(step(said))
        await session.close()
        await server.close()


async def test_a_full_server_is_waited_for_and_then_named() -> None:
    async with playing(SAY, most=1) as game:
        server = Server(game.url)
        first, _ = await server.session(5.0, RESET)
        with pytest.raises(
            EnvironmentFailed, match=r"all of its sessions \(1\) are taken: raise max_concurrent_envs"
        ):
            await server.session(0.7, RESET)
        waiting = asyncio.create_task(server.session(20.0, RESET))
        await asyncio.sleep(0.3)
        await first.close()
        second, _ = await waiting
        await second.close()
        await server.close()


async def test_a_server_that_is_away_is_waited_for_and_then_named() -> None:
    (port,) = free_ports(1)
    server, began = Server(f"ws://127.0.0.1:{port}"), time.monotonic()
    with pytest.raises(EnvironmentFailed, match=r"it cannot be reached: .*; tried for 0.5 s"):
        await server.session(0.5, RESET)
    assert time.monotonic() - began < 20
    await server.close()


async def test_another_server_is_named() -> None:
    async def listed(request: web.Request) -> web.Response:
        return web.json_response([1])

    app = web.Application()
    app.router.add_get("/schema", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Server(f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(EnvironmentFailed, match="no OpenEnv server is there"):
        await server.schema(5.0)
    with pytest.raises(EnvironmentFailed, match="404"):
        await server.session(0.5, RESET)
    await server.close()
    await runner.cleanup()


async def test_a_server_does_not_send_the_worker_to_another_address() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:9/elsewhere")

    app = web.Application()
    app.router.add_get("/{any:.*}", elsewhere)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Server(f"ws://127.0.0.1:{runner.addresses[0][1]}")
    try:
        with pytest.raises(EnvironmentFailed, match=r"redirects to http://127\.0\.0\.1:9/elsewhere: write"):
            await server.session(30.0, RESET)
        with pytest.raises(EnvironmentFailed, match="/schema answers 302"):
            await server.schema(30.0)
    finally:
        await server.close()
        await runner.cleanup()
