"""What is written on after a turn that waits for weights: real tools and environments, a scripted engine."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed_workers.engines.base import Output, sampling_for
from rhymed_workers.environment.pool import Environments
from rhymed_workers.rollout.ahead import TurnsAhead, turns_ahead
from rhymed_workers.rollout.generation import ActiveSample, Generation
from rhymed_workers.sessions.dialogue import load_dialogue
from tests.workers.rollout.test_generation import Scripted

ID = SampleId(1, "p", 0)
CODE = '''
def look(key: str) -> str:
    """Looks something up.

    Args:
        key: Any.
    """
    return f"found {key}"


def send(key: str) -> str:
    """Sends something.

    Args:
        key: Any.
    """
    return "sent"


look.pure = True
send.idempotent = True


def slow(key: str) -> str:
    """Answers when its file is there.

    Args:
        key: Any.
    """
    import pathlib, time
    here = pathlib.Path(__file__)
    here.with_name("asked").touch()
    while not here.with_name("go").exists():
        time.sleep(0.01)
    return "slow"


slow.pure = True


class Box:
    pure = True

    def reset(self, **row):
        self.sum = 0

    def add(self, key: str) -> str:
        """Adds.

        Args:
            key: A number.
        """
        self.sum += int(key)
        return f"sum {self.sum}"


class Dirty(Box):
    pure = False
'''


def call(tool: str, key: str) -> list[int]:
    """A turn's tokens: where no model is, a text's bytes."""
    return list(f'<tool_call>{{"name": "{tool}", "arguments": {{"key": "{key}"}}}}</tool_call>'.encode())


def configured(folder: Path, **environment: Any) -> Config:
    (folder / "mine.py").write_text(CODE)
    named = {key: f"{folder}/mine.py:{name}" for key, name in environment.items() if key in ("tools", "factory")}
    section = {"processes": 1, "timeout_s": 60.0, **environment, **named}
    parts = {"environment": section, "rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}
    return Config.model_validate({**parts, "schedule": {"run_ahead": 1}, "reward": {"scorer": "exact"}})


async def rows(prompts: Sequence[str]) -> list[Any]:
    return [{"prompt": "Begin."} for _ in prompts]


class Scene:
    """One sample that is written a step before its weights are there, of weights 0."""

    def __init__(self, config: Config, ahead: TurnsAhead | None) -> None:
        self.engine, self.ahead = Scripted(), ahead
        self.parked: list[SampleId] = []
        self.reads = 0  # of rows

        async def read_partial(id: SampleId) -> Sequence[int]:
            return ()

        async def park(id: SampleId) -> None:
            self.parked.append(id)

        sampling = functools.partial(sampling_for, config.rollout, config.eval, 0)
        self.generation = Generation(self.engine, sampling, 0, read_partial, park, ahead)  # type: ignore[arg-type]
        self.dialogue = load_dialogue(config, [])

    def begin(self, turn: int, prefix: list[int]) -> asyncio.Task[Output | None]:
        self.sample = ActiveSample(ID, 0.0, prompt=[1], prefix=prefix, turn=turn)
        return asyncio.get_running_loop().create_task(self.generation.run(self.sample))

    def after(self, prefix: list[int], turn: list[int], content: str) -> list[int]:
        return [*prefix, *turn, *self.dialogue.suffix([{"role": "tool", "content": content}], turn)]

    async def asked(self, count: int) -> list[int]:
        """The response with which the engine is asked for the `count`-th time."""
        async with asyncio.timeout(60):
            while len(self.engine.tasks) < count:
                await asyncio.sleep(0.005)
        return [*(self.engine.tasks[count - 1].prefix or ())]

    async def waits(self) -> None:
        async with asyncio.timeout(60):
            while not self.parked:
                await asyncio.sleep(0.005)

    async def load(self, version: int) -> None:
        self.generation.interrupt([self.sample])
        self.engine.version = version
        await self.generation.notify()


@asynccontextmanager
async def scene(folder: Path, **environment: Any) -> AsyncIterator[Scene]:
    config = configured(folder, **environment)

    async def counted(prompts: Sequence[str]) -> list[Any]:
        one.reads += 1
        return await rows(prompts)

    async with turns_ahead(config, counted) as ahead:
        one = Scene(config, ahead)
        yield one


async def verified(scene: Scene, writing: asyncio.Task[Output | None], turn: list[int]) -> None:
    """The turn that waited comes out of the new weights."""
    count = len(scene.engine.tasks)
    await scene.load(1)
    await scene.asked(count + 1)
    await scene.engine.answer(turn)
    output = await writing
    assert output is not None
    assert (output.tokens.tolist(), output.versions) == (turn, [(1, len(turn))])


async def test_turns_after_pure_calls_are_verified_where_they_were_expected(tmp_path: Path) -> None:
    first, second, last = call("look", "a"), call("look", "b"), [65, 66]
    async with scene(tmp_path, tools="look,send") as one:
        writing = one.begin(0, [])
        await one.engine.answer(first)
        expected = await one.asked(2)
        assert expected == one.after([], first, "found a")
        await one.engine.answer(second)
        further = await one.asked(3)
        assert further == one.after(expected, second, "found b")
        await one.engine.answer(last)  # without a call: the sample would end
        await one.waits()
        assert one.reads == 1, "one row serves all turns"
        await verified(one, writing, first)
        for number, prefix, turn in ((1, expected, second), (2, further, last)):
            writing = one.begin(number, prefix)
            await one.engine.answer(turn)
            assert one.engine.tasks[-1].carried == turn
            assert one.sample.ahead == (len(turn), len(turn))
            assert (await writing) is not None


async def test_after_a_different_turn_nothing_of_it_is_used(tmp_path: Path) -> None:
    async with scene(tmp_path, tools="look") as one:
        writing = one.begin(0, [])
        await one.engine.answer(call("look", "a"))
        await one.asked(2)
        await one.engine.answer([65, 66])
        await one.waits()
        await verified(one, writing, call("look", "c"))
        one.begin(1, one.after([], call("look", "c"), "found c"))
        await one.engine.answer([67])
        assert not one.engine.tasks[-1].carried


@pytest.mark.parametrize(
    ("turn", "environment"),
    [
        (call("send", "a"), {"tools": "look,send"}),
        (call("look", "a") + call("send", "a"), {"tools": "look,send"}),
        (call("unknown", "a"), {"tools": "look,send"}),
        (call("add", "1"), {"factory": "Dirty"}),
        ([65, 66], {"tools": "look"}),
        (call("look", "a"), {"tools": "look", "max_turns": 1}),
    ],
    ids=["not pure", "one not pure", "unknown", "not a pure environment", "its last turn", "the last turn allowed"],
)
async def test_it_stops(tmp_path: Path, turn: list[int], environment: dict[str, Any]) -> None:
    async with scene(tmp_path, **environment) as one:
        one.begin(0, [])
        await one.engine.answer(turn)
        await one.waits()
        assert len(one.engine.tasks) == 1


async def test_weights_that_arrive_end_what_is_written_on_and_its_beginning_is_verified(tmp_path: Path) -> None:
    first = call("look", "a")
    async with scene(tmp_path, tools="look") as one:
        writing = one.begin(0, [])
        await one.engine.answer(first)
        expected = await one.asked(2)
        await one.load(1)
        assert one.engine.cancelled == [ID, ID]
        await one.engine.answer([65, 66], "abort")
        await one.asked(3)
        await one.engine.answer(first)
        assert (await writing) is not None
        one.begin(1, expected)
        await one.engine.answer([65, 66, 67])
        assert one.engine.tasks[-1].carried == [65, 66]


@pytest.mark.parametrize("what", ["loaded", "released"])
async def test_nothing_waits_for_a_call_of_a_copy(tmp_path: Path, what: str) -> None:
    first, second = call("look", "a"), call("slow", "b")
    async with scene(tmp_path, tools="look,slow") as one:
        writing = one.begin(0, [])
        await one.engine.answer(first)
        expected = await one.asked(2)
        await one.engine.answer(second)
        async with asyncio.timeout(60):
            while not (tmp_path / "asked").exists():
                await asyncio.sleep(0.005)
        if what == "loaded":
            await verified(one, writing, first)
            one.begin(1, expected)
            await one.engine.answer(second)
            assert one.engine.tasks[-1].carried == second
        else:
            one.sample.released = True
            await one.generation.notify()
            output = await asyncio.wait_for(writing, 60)
            assert output is not None
            assert (output.tokens.tolist(), output.finish_reason) == (first, "abort")
        assert not (tmp_path / "go").exists()


async def test_a_pure_environment_answers_as_the_samples_own_would(tmp_path: Path) -> None:
    first, second = call("add", "3"), call("add", "4")
    async with scene(tmp_path, factory="Box") as one:
        writing = one.begin(0, [])
        await one.engine.answer(first)
        expected = await one.asked(2)
        assert expected == one.after([], first, "sum 3")
        await one.engine.answer(second)
        assert await one.asked(3) == one.after(expected, second, "sum 7")
        await one.engine.answer([65])
        await one.waits()
        assert one.reads == 1
        assert one.ahead is not None
        async with asyncio.timeout(60):
            while one.ahead._pool.has(str(ID), 2):  # until it is closed
                await asyncio.sleep(0.005)
        await verified(one, writing, first)


async def test_a_turn_that_is_cut_ends_it(tmp_path: Path) -> None:
    async with scene(tmp_path, tools="look") as one:
        one.begin(0, [])
        await one.engine.answer(call("look", "a"), "length")
        await one.waits()
        assert len(one.engine.tasks) == 1


async def test_code_that_cannot_be_loaded_here_stops_no_worker(tmp_path: Path) -> None:
    config = configured(tmp_path, tools="look")
    (tmp_path / "mine.py").write_text("1 / 0")
    async with turns_ahead(config, rows) as ahead:
        assert ahead is None


async def test_without_run_ahead_or_pure_tools_no_process_stays(tmp_path: Path) -> None:
    config = configured(tmp_path, tools="look")
    still = config.model_copy(update={"schedule": config.schedule.model_copy(update={"run_ahead": 0})})
    async with turns_ahead(still, rows) as ahead:
        assert ahead is None
    async with turns_ahead(configured(tmp_path, tools="send"), rows) as ahead:
        assert ahead is None


async def test_what_is_pure_may_be_called_again(tmp_path: Path) -> None:
    async with Environments(configured(tmp_path, tools="look,send")) as pool:
        assert (pool.pure, pool.idempotent) == ({"look"}, {"look", "send"})
    async with Environments(configured(tmp_path, factory="Box")) as pool:
        assert pool.pure == pool.idempotent == {"add"}
    assert json.loads(bytes(call("look", "a"))[11:-12])["name"] == "look"
