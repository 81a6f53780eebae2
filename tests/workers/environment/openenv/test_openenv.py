"""The server of the package `openenv` itself. It needs other versions of packages than ours, so it runs with a Python
that has it: `OPENENV_PYTHON`, or ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.calls import Read
from tests.ports import free_ports
from tests.workers.environment.pools import CHAT, ask

PYTHON = os.environ.get("OPENENV_PYTHON", sys.executable)
START_S = 120.0

SERVER = '''
import random, sys
import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guesses the number."""
    number: int

class Say(Action):
    message: str

class Hint(Observation):
    hint: str

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, most=9, **row):
        self.secret, self._state = random.Random(seed).randint(1, most), State(episode_id=episode_id)
        return Hint(hint=f"Guess from 1 to {most}.")

    def step(self, action, timeout_s=None, **more):
        guess = action.number if isinstance(action, Guess) else int(action.message)
        word = "Right" if guess == self.secret else "Higher" if guess < self.secret else "Lower"
        return Hint(hint=f"{word}.", done=word == "Right", reward=float(word == "Right"))

    @property
    def state(self):
        return self._state

mcp = FastMCP("sums")

@mcp.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

class Sums(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__(mcp)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **row):
        return Observation()

    def _step_impl(self, action, timeout_s=None, **more):
        raise ValueError("only tools")

    @property
    def state(self):
        return self._state

kind, port, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
made = {"guess": (Game, Guess, Hint), "say": (Game, Say, Hint), "mcp": (Sums, CallToolAction, CallToolObservation)}
uvicorn.run(create_fastapi_app(*made[kind], max_concurrent_envs=most), port=port, log_level="warning")
'''


@pytest.fixture(scope="module")
def there() -> None:
    found = subprocess.run(
        [PYTHON, "-c", "import openenv.core.env_server.http_server"], capture_output=True, timeout=120
    )
    if found.returncode:
        pytest.skip("the package openenv is not installed")


@contextlib.contextmanager
def server(folder: Path, kind: str, most: int = 8) -> Iterator[str]:
    (folder / "server.py").write_text(SERVER)
    (port,) = free_ports(1)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [PYTHON, "server.py", kind, str(port), str(most)], cwd=folder, stdout=log, stderr=log
        )
        try:
            yield f"ws://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def pool_of(url: str, **settings: Any) -> Environments:
    section = {"url": url, "processes": 1, "timeout_s": START_S, **settings}
    return Environments(Config.model_validate({"environment": section, "reward": {"scorer": "environment"}}))


pytestmark = [pytest.mark.usefixtures("there"), pytest.mark.thorough, pytest.mark.timeout(400)]


async def test_a_game_in_words(tmp_path: Path) -> None:
    with server(tmp_path, "say") as url:
        async with pool_of(url) as pool:
            for name in ("a", "b"):
                opened = await pool.open(name, {"prompt": "p", "most": 5}, CHAT)
                assert opened.chat[-1]["content"] == "Begin.\n\nGuess from 1 to 5."
            rewards = {name: [await _said(pool, name, str(number)) for number in range(1, 6)] for name in ("a", "b")}
            assert rewards["a"] == rewards["b"]  # the samples of a row have the same seed
            assert sum(rewards["a"]) == 1.0
            with pytest.raises(EnvironmentFailed, match="EXECUTION_ERROR: invalid literal for int"):
                await _said(pool, "a", "five")


async def _said(pool: Environments, name: str, text: str) -> float:
    return float((await pool.step(name, Read(text), last=False)).reward or 0.0)


async def test_a_typed_action(tmp_path: Path) -> None:
    with server(tmp_path, "guess") as url:
        async with pool_of(url) as pool:
            assert pool.about.tools[0]["function"]["description"] == "Guesses the number."
            await pool.open("a", {"prompt": "p", "most": 1}, CHAT)
            stepped = await ask(pool, "Guess", number="much")
            assert "number: Input should be a valid integer" in stepped.messages[0]["content"]
            stepped = await ask(pool, "Guess", number=1)
            assert (stepped.messages[0]["content"], stepped.reward, stepped.done) == ("Right.", 1.0, True)


async def test_tools_of_mcp(tmp_path: Path) -> None:
    with server(tmp_path, "mcp") as url:
        async with pool_of(url) as pool:
            assert pool.names == {"add"}
            await pool.open("a", {"prompt": "p"}, CHAT)
            assert (await ask(pool, "add", a=2, b=3)).messages[0]["content"] == "5"
            assert (await ask(pool, "add", a=2)).calls[0].error


async def test_a_full_server_has_room_again_when_a_sample_ends(tmp_path: Path) -> None:
    with server(tmp_path, "say", most=1) as url:
        async with pool_of(url) as pool:
            await pool.open("a", {"prompt": "p"}, CHAT)
            waiting = asyncio.create_task(pool.open("b", {"prompt": "p"}, CHAT))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            await pool.close("a")
            await waiting
