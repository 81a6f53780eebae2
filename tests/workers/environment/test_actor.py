"""What a worker does with a sample after any other worker died with it: real store, real processes with tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed, EnvironmentLost
from rhymed.core.messages import EVAL, SampleId, Turn
from rhymed.core.run.layout import layout_of
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from rhymed_store.sessions import NewTurn, begin_calls, get_session, put_answer, put_turns
from rhymed_workers.environment.actor import INTERRUPTED, Actor
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.dialogue import Dialogue
from tests.workers.environment.openenv.servers import SAY, playing
from tests.workers.peers import ROWS, ids, until

FILE = '''
import asyncio
import os
import time

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.log")

def note(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")

def spend(key: str) -> str:
    """Must not be done twice.

    Args:
        key: Any.
    """
    note(key)
    return "spent " + key

def look(key: str) -> str:
    """May be done twice.

    Args:
        key: Any.
    """
    note(key)
    return "seen " + key

look.idempotent = True

def leave(key: str) -> str:
    """Ends its process when a file is there.

    Args:
        key: Of the file.
    """
    note("leave")
    while not os.path.exists(os.path.join(os.path.dirname(LOG), key)):
        time.sleep(0.01)
    os._exit(3)

async def wait(key: str) -> str:
    """Does not end.

    Args:
        key: Any.
    """
    note(key)
    await asyncio.sleep(600)

class Counter:
    def reset(self, **row):
        self.calls = []

    def add(self, key: str) -> str:
        """Adds.

        Args:
            key: Any.
        """
        self.calls.append(key)
        note(key)
        return ",".join(self.calls)

    def get_reward(self):
        return float(len(self.calls))

class Reader:
    def __init__(self, env_config, extras):
        pass

    def init(self, prompt):
        self.turns = 0
        return prompt, {}

    def step(self, action):
        self.turns += 1
        note("read")
        return {"observations": [{"role": "user", "content": "so " * 100}], "done": False, "reward": 0.25}

    def close(self):
        pass
'''
ONE = ids()[0]
Make: TypeAlias = "Callable[..., AbstractAsyncContextManager[Actor]]"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "mine.py").write_text(FILE)
    return Config.model_validate(
        {"run": {"folder": str(tmp_path)}, "rollout": {"engine": "trace"}, "store": {"map_gib": 0.125}}
    )


@pytest.fixture
async def client(config: Config) -> AsyncIterator[StoreClient]:
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        await client.put_prompts(ROWS)
        yield client
        client.close()


@pytest.fixture
def worker(config: Config, client: StoreClient, tmp_path: Path) -> Make:
    """An environment worker of its own each time."""

    @contextlib.asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Actor]:
        named = {
            name: f"{tmp_path}/mine.py:{value}" if isinstance(value, str) else value
            for name, value in settings.items()
        }
        own = config.model_copy(update={"environment": config.environment.model_copy(update=named)})
        async with Environments(own) as pool:
            yield Actor(own, client, pool, Dialogue(None, pool.about.tools, 100))

    return make


def made(tmp_path: Path) -> list[str]:
    log = tmp_path / "calls.log"
    return log.read_text().split() if log.exists() else []


async def write(
    client: StoreClient, number: int, *calls: tuple[str, str], sample: SampleId = ONE, finish: Any = "stop"
) -> None:
    """A turn as a rollout worker stores it; without calls it is the last one."""
    wanted = [{"name": name, "arguments": {"key": key}} for name, key in calls]
    text = "so " + "".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in wanted)
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    turn = Turn(length=len(tokens), finish_reason=finish, versions=[(0, len(tokens))])
    await put_turns(client, [NewTurn(sample, number, turn, tokens, np.full(len(tokens), -1.0, np.float32))])


async def last_answer(client: StoreClient, sample: SampleId = ONE) -> str:
    stored = await get_session(client, sample)
    return bytes(stored.answers[-1].astype("u1")).decode()


async def test_calls_that_had_begun_are_not_made_again_and_the_policy_reads_why(
    worker: Make, client: StoreClient, tmp_path: Path
) -> None:
    async with worker(tools="spend,look") as actor:
        assert await actor.act(ONE) is None, "the prompt"
        await write(client, 0, ("look", "a"), ("spend", "b"))
        assert await begin_calls(client, ONE, 0, "of-another")
        assert await actor.act(ONE) is None
        assert made(tmp_path) == []
        assert (await last_answer(client)).count(INTERRUPTED) == 2, "of the turn's calls, none is known to be made"
        await write(client, 1, ("spend", "c"))
        assert await actor.act(ONE) is None
        assert (await last_answer(client), made(tmp_path)) == ("\n\nspent c\n\n", ["c"])


async def test_a_call_that_waited_in_a_process_that_another_call_ended_is_made_then(
    worker: Make, client: StoreClient, tmp_path: Path
) -> None:
    first, second, third = ids()[:3]
    async with worker(tools="spend,leave,wait", processes=1) as actor:
        for id, tool, key in ((first, "leave", "now"), (second, "wait", "a"), (third, "spend", "b")):
            await actor.act(id)
            await write(client, 0, (tool, key), sample=id)
        (process,) = actor._pool._processes
        acting = []
        for waiting, id in enumerate((first, second, third), 1):
            acting.append(asyncio.create_task(actor.act(id)))
            await until(lambda waiting=waiting: process.waiting == waiting)
            await until(lambda waiting=waiting: len(made(tmp_path)) == min(waiting, 2))
        (tmp_path / "now").touch()
        ended = await asyncio.gather(*acting, return_exceptions=True)
        assert [type(error) for error in ended] == [EnvironmentFailed, EnvironmentLost, EnvironmentLost]
        await asyncio.gather(actor.act(second), actor.act(third))
        assert INTERRUPTED in await last_answer(client, second)
        assert await last_answer(client, third) == "\n\nspent b\n\n"
        assert made(tmp_path) == ["leave", "a", "b"]


async def test_calls_that_may_be_made_again_are(worker: Make, client: StoreClient, tmp_path: Path) -> None:
    async with worker(tools="spend,look") as actor:
        await actor.act(ONE)
        await write(client, 0, ("look", "a"))
        await actor.act(ONE)
        assert (await last_answer(client), made(tmp_path)) == ("\n\nseen a\n\n", ["a"])
        assert not (await get_session(client, ONE)).session.begun


async def test_what_is_answered_is_not_answered_again(worker: Make, client: StoreClient, tmp_path: Path) -> None:
    async with worker(tools="spend,look") as actor, worker(tools="spend,look") as other:
        await actor.act(ONE)
        assert await other.act(ONE) is None, "it is the policy's turn"
        await write(client, 0, ("spend", "a"))
        await actor.act(ONE)
        assert await other.act(ONE) is None
        assert made(tmp_path) == ["a"]


async def test_of_two_workers_that_do_not_know_of_each_other_one_makes_the_calls(
    worker: Make, client: StoreClient, tmp_path: Path
) -> None:
    """Both have read the turn before either answers it, as when one was cut off from the broker."""
    async with worker(tools="spend,look") as actor, worker(tools="spend,look") as other:
        await actor.act(ONE)
        await write(client, 0, ("spend", "a"))
        stored = await get_session(client, ONE)
        await asyncio.gather(actor._answer(ONE, stored), other._answer(ONE, stored))
        answer = await last_answer(client)
        assert made(tmp_path) == ["a"]
        assert answer == "\n\nspent a\n\n" or INTERRUPTED in answer
        await actor._answer(ONE, stored)
        assert (await last_answer(client), made(tmp_path)) == (answer, ["a"]), "the first answer stays"


@pytest.mark.parametrize(("training", "evaluation", "cut"), [(512, 60, True), (60, 512, False)])
async def test_a_sample_of_an_evaluation_has_the_room_of_its_evaluation(
    config: Config, client: StoreClient, tmp_path: Path, training: int, evaluation: int, cut: bool
) -> None:
    """The rollout worker would be asked for a turn without room, or the sample would end early."""
    one, tree = SampleId(EVAL, ONE.prompt, 0), config.model_dump()
    tree["environment"]["tools"] = f"{tmp_path}/mine.py:spend,look"
    tree["rollout"]["max_response_length"], tree["eval"]["max_response_length"] = training, evaluation
    own = Config.model_validate(tree)
    async with Environments(own) as pool:
        actor = Actor(own, client, pool, Dialogue(None, pool.about.tools, 100))
        await actor.act(one)
        await write(client, 0, ("look", "a"), sample=one)
        info = await actor.act(one)
    assert (info is not None) == cut


async def test_a_worker_that_died_after_it_stored_the_sample_leaves_it_complete(
    worker: Make, client: StoreClient
) -> None:
    async with worker(tools="spend,look") as actor, worker(tools="spend,look") as other:
        await actor.act(ONE)
        await write(client, 0)
        info = await actor.act(ONE)
        assert info is not None
        assert await other.act(ONE) == info
        assert (await get_session(client, ONE)).session.stored


async def test_a_worker_that_died_before_it_joined_the_sample_leaves_that_to_another(
    worker: Make, client: StoreClient, tmp_path: Path
) -> None:
    async with worker(tools="spend,look") as actor:
        await actor.act(ONE)
        await write(client, 0, ("spend", "a"))
        await actor.act(ONE)
        await write(client, 1)
        stored = await get_session(client, ONE)
        assert await actor._answer(ONE, stored), "and it dies here"
    async with worker(tools="spend,look") as other:
        info = await other.act(ONE)
        assert info is not None
        assert len(info.turns) == 3
        assert made(tmp_path) == ["a"]


async def test_an_environment_that_missed_turns_is_rebuilt(worker: Make, client: StoreClient, tmp_path: Path) -> None:
    """Its sample was with another worker meanwhile."""
    async with worker(factory="Counter") as actor, worker(factory="Counter") as other:
        await actor.act(ONE)
        await write(client, 0, ("add", "a"))
        await actor.act(ONE)
        await write(client, 1, ("add", "b"))
        await other.act(ONE)
        assert (await last_answer(client), other.rebuilt) == ("\n\na,b\n\n", 1)
        await write(client, 2, ("add", "c"))
        await actor.act(ONE)
        assert (await last_answer(client), actor.rebuilt) == ("\n\na,b,c\n\n", 1)
        await write(client, 3)
        info = await other.act(ONE)
        assert info is not None
        assert info.earned == 3.0


async def test_an_environment_that_may_have_seen_a_turn_twice_is_rebuilt(
    worker: Make, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was not stored: the store was away for too long, and the sample was given back."""
    async with worker(factory="Counter") as actor:
        await actor.act(ONE)
        await write(client, 0, ("add", "a"))

        async def fail(*_: object) -> None:
            raise TimeoutError

        with monkeypatch.context() as away:
            away.setattr(actor, "_put", fail)
            with pytest.raises(TimeoutError):
                await actor.act(ONE)
        await actor.act(ONE)
        assert await last_answer(client) == "\n\na\n\n"


async def test_a_forged_prompt_or_answer_stays_but_breaks_no_worker(worker: Make, client: StoreClient) -> None:
    """Of who has an environment worker's key, from `put_answer` on."""
    from rhymed.core.messages import Answer

    async with worker(tools="spend,look") as actor:
        await put_answer(client, ONE, 0, Answer(length=2), [1, 2])
        assert await actor.act(ONE) is None, "it is the policy's turn"
        await write(client, 0, ("spend", "a"))
        await put_answer(client, ONE, 1, Answer(length=0, done=True, reward=99.0), [])
        info = await actor.act(ONE)
        assert info is not None
        assert info.earned == 99.0


async def test_environments_on_a_server_are_open_until_they_are_closed(config: Config, client: StoreClient) -> None:
    async with playing(SAY) as game:
        named = config.environment.model_copy(update={"url": game.url, "processes": 1})
        own = config.model_copy(update={"environment": named})
        async with Environments(own) as pool:
            actor = Actor(own, client, pool, Dialogue(None, [], 1000))
            await actor.act(ONE)
            assert actor.open == [ONE]
            await actor.close(ONE)
            assert actor.open == []


async def test_what_an_environment_gave_for_the_turn_whose_answer_has_no_room_counts(
    worker: Make, client: StoreClient
) -> None:
    async with worker(factory="Reader") as actor:
        short = actor._config.rollout.model_copy(update={"max_response_length": 100})
        actor._config = actor._config.model_copy(update={"rollout": short})
        await actor.act(ONE)
        await write(client, 0)
        info = await actor.act(ONE)
        assert info is not None
        assert (info.earned, info.finish_reason) == (0.25, "length")
    (sample,) = await client.get_samples([ONE])
    assert json.loads(sample.info.state) == {"turns": 1}


@pytest.mark.parametrize(("factory", "read", "reward"), [("Reader", ["read"], 0.25), ("Counter", [], 0.0)])
async def test_a_turn_that_was_cut_is_text_for_an_environment_that_reads_text_and_its_calls_are_not_made(
    worker: Make, client: StoreClient, tmp_path: Path, factory: str, read: list[str], reward: float
) -> None:
    async with worker(factory=factory) as actor:
        await actor.act(ONE)
        await write(client, 0, *([("add", "a")] if factory == "Counter" else []), finish="length")
        info = await actor.act(ONE)
        assert info is not None
        assert (info.earned, info.finish_reason) == (reward, "length")
        assert made(tmp_path) == read


async def test_a_complete_sample_has_its_conversation_and_the_attributes_of_its_environment(
    worker: Make, client: StoreClient
) -> None:
    async with worker(factory="Counter") as actor:
        assert await actor.act(ONE) is None, "the prompt"
        await write(client, 0, ("add", "a"), ("add", "b"))
        assert await actor.act(ONE) is None
        await write(client, 1)
        assert await actor.act(ONE)
    (sample,) = await client.get_samples([ONE])
    first, *results = json.loads(sample.info.said[0])
    calls = [call["function"] for call in first["tool_calls"]]
    assert calls == [{"name": "add", "arguments": {"key": key}} for key in "ab"]
    assert [(one["role"], one["name"], one["content"]) for one in results] == [
        ("tool", "add", "a"),
        ("tool", "add", "a,b"),
    ]
    assert [message["role"] for message in json.loads(sample.info.said[1])] == ["assistant"]
    assert json.loads(sample.info.state) == {"calls": ["a", "b"]}
    (trained,) = await client.get_samples([ONE], logprobs=True)
    assert (trained.info.said, trained.info.state) == ([], ""), "a trainer needs no words"
