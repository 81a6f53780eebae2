"""Environments on a server, through the pool's real processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.calls import Read
from tests.ports import free_ports
from tests.workers.environment.openenv.servers import GUESS, MCP, SAY, Game, playing
from tests.workers.environment.pools import CHAT, ask, reported


def pool_of(game: Game | str, **settings: Any) -> Environments:
    url = game if isinstance(game, str) else game.url
    section = {"url": url, "processes": 1, "timeout_s": 60.0, **settings}
    return Environments(Config.model_validate({"environment": section, "reward": {"scorer": "environment"}}))


async def said(pool: Environments, text: str, name: str = "a") -> tuple[str, float | None, bool]:
    stepped = await pool.step(name, Read(text), last=False)
    return str(stepped.messages[0]["content"]), stepped.reward, stepped.done


async def test_an_action_with_one_text_is_the_policys_turn() -> None:
    async with playing(SAY) as game, pool_of(game) as pool:
        assert (pool.about.kind, pool.names) == ("text", set())
        opened = await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)
        assert opened.chat == [{"role": "user", "content": "Begin.\n\nGuess from 1 to 9."}]
        assert await said(pool, "3") == ("Higher.", -0.25, False)
        assert await said(pool, "seven") == ("Invalid: number: Input should be a valid integer", None, False)
        assert await said(pool, "7") == ("Right.", 1.0, True)
        await pool.close("a")
        async with asyncio.timeout(20):
            while game.open:
                await asyncio.sleep(0.01)


async def test_another_action_is_a_tool() -> None:
    async with playing(GUESS) as game, pool_of(game) as pool:
        assert (pool.about.kind, pool.names) == ("methods", {"GuessAction"})
        opened = await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)
        assert opened.tools == ["GuessAction"]
        stepped = await ask(pool, "GuessAction", number=3)
        assert (stepped.messages, stepped.reward) == (
            [{"role": "tool", "name": "GuessAction", "content": "Higher."}],
            -0.25,
        )
        assert "Input should be a valid integer" in await reported(pool, "GuessAction", number="three")
        assert "there is no tool 'guess'; there are: GuessAction" in await reported(pool, "guess", number=1)
        stepped = await ask(pool, "GuessAction", number=7)
        assert (stepped.done, stepped.reward) == (True, 1.0)
        assert (await pool.step("a", Read("I won."), last=False)).done


async def test_tools_of_mcp_are_tools() -> None:
    async with playing(MCP) as game, pool_of(game) as pool:
        assert (pool.about.kind, pool.names) == ("methods", {"add"})
        await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)
        stepped = await ask(pool, "add", a=2)
        assert (stepped.messages[0]["content"], stepped.reward, stepped.done) == ("9", 0.0, False)
        stepped = await ask(pool, "add")
        assert "a is missing" in stepped.messages[0]["content"]
        assert stepped.calls[0].error == "a is missing"


async def test_reset_gets_the_row_and_a_seed_that_the_samples_of_a_row_share() -> None:
    async with playing(SAY) as game, pool_of(game, args={"level": 2, "secret": 1}) as pool:
        for name in ("a", "b"):
            await pool.open(name, {"prompt": "p", "secret": 7}, CHAT)
        await pool.open("c", {"prompt": "q", "seed": 3}, CHAT)
        one, two, three = game.resets
        assert one.pop("episode_id") == "a"
        assert two.pop("episode_id") == "b"
        assert one == two
        assert (one["secret"], one["level"], three["seed"], three["secret"]) == (7, 2, 3, 1)


async def test_a_hundred_samples_have_a_session_each() -> None:
    async with playing(SAY) as game, pool_of(game) as pool:
        names = [str(number) for number in range(100)]
        await asyncio.gather(*(pool.open(name, {"prompt": "p", "secret": 5}, CHAT) for name in names))
        assert game.open == 100
        answers = await asyncio.gather(*(said(pool, "5", name) for name in names))
        assert set(answers) == {("Right.", 1.0, True)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise", "EXECUTION_ERROR: the board is on fire"),
        ("vanish", "its session is lost"),
        ("nonsense", "it says what OpenEnv does not"),
        ("infinite", "it gave the reward inf"),
        ("sleep", "took longer than 2 s (environment.timeout_s) and was cancelled"),
    ],
)
async def test_what_the_server_cannot_do_breaks_the_sample_alone(text: str, why: str) -> None:
    async with playing(SAY) as game, pool_of(game, timeout_s=2.0) as pool:
        for name in ("a", "b"):
            await pool.open(name, {"prompt": "p", "secret": 7}, CHAT)
        with pytest.raises(EnvironmentFailed) as broken:
            await said(pool, text)
        assert why in str(broken.value)
        assert game.url in str(broken.value)
        assert not pool.has("a", 1)
        assert await said(pool, "7", "b") == ("Right.", 1.0, True)
        await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)  # rebuilt
        assert await said(pool, "7") == ("Right.", 1.0, True)


async def test_a_full_server_is_a_sentence_within_the_time_limit() -> None:
    async with playing(SAY, most=1) as game, pool_of(game, timeout_s=2.0) as pool:
        await pool.open("a", {"prompt": "p"}, CHAT)
        with pytest.raises(
            EnvironmentFailed, match=r"all of its sessions \(1\) are taken: raise max_concurrent_envs"
        ):
            await pool.open("b", {"prompt": "p"}, CHAT)
        assert game.most_open == 1


async def test_a_server_that_is_away_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    with pytest.raises(EnvironmentFailed, match=r"environment\.url: ws://127.*cannot be reached: .*tried for 1 s"):
        async with pool_of(f"ws://127.0.0.1:{port}", timeout_s=1.0):
            pass


async def test_a_server_that_dies_between_turns_is_a_sentence() -> None:
    async with playing(SAY) as game:
        pool = await pool_of(game, timeout_s=2.0).__aenter__()
        await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)
    try:
        with pytest.raises(EnvironmentFailed, match="its session is lost"):
            await said(pool, "7")
        with pytest.raises(EnvironmentFailed, match="cannot be reached"):
            await pool.open("a", {"prompt": "p", "secret": 7}, CHAT)
    finally:
        await pool.__aexit__()
