"""Generation with a scripted engine: every order of cancel, release, load and end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed_workers.engines.base import Output, Task, sampling_for
from rhymed_workers.rollout.generation import ActiveSample, Generation

TEXT = list(range(100, 150))


async def settled() -> None:
    """Whatever goes on without the outside has gone on: turns of the loop are counted, not milliseconds."""
    for _ in range(100):
        await asyncio.sleep(0)


class Scripted:
    """Answers when it is told to; `cancel` is too late unless a test says otherwise."""

    def __init__(self) -> None:
        self.version = 0
        self.tasks: list[Task] = []
        self.cancelled: list[SampleId] = []
        self._next: asyncio.Future[Output] | None = None

    async def generate(self, task: Task) -> Output:
        self.tasks.append(task)
        self._next = asyncio.get_running_loop().create_future()
        return await self._next

    def cancel(self, id: SampleId) -> None:
        self.cancelled.append(id)

    async def answer(self, tokens: Sequence[int], reason: str = "stop", version: int | None = None) -> None:
        while self._next is None or self._next.done():
            await asyncio.sleep(0)
        of = self.version if version is None else version
        versions = [(of, len(tokens))] if len(tokens) else []
        logprobs = np.zeros(len(tokens), np.float32)
        self._next.set_result(Output(np.array(tokens, np.uint32), logprobs, reason, versions))  # type: ignore[arg-type]
        await settled()


class Scene:
    """One sample on its way."""

    def __init__(self, step: int, begun: Sequence[int] = ()) -> None:
        self.engine = Scripted()
        self.parked: list[SampleId] = []
        self.sample = ActiveSample(SampleId(step, "p", 0), 0.0, has_partial=bool(begun), prompt=[1])

        async def read_partial(id: SampleId) -> Sequence[int]:
            return begun

        async def park(id: SampleId) -> None:
            self.parked.append(id)

        sampling = functools.partial(sampling_for, Config().rollout, Config().eval, 0)
        self.generation = Generation(self.engine, sampling, 0, read_partial, park)  # type: ignore[arg-type]
        self.task = asyncio.get_running_loop().create_task(self.generation.run(self.sample))

    async def load(self, version: int) -> None:
        self.generation.interrupt([self.sample])
        self.engine.version = version
        await self.generation.notify()
        await settled()

    async def out(self) -> Output:
        output = await asyncio.wait_for(self.task, 60)
        assert output is not None
        return output


async def test_a_release_that_comes_too_late_hands_over_what_is_stale() -> None:
    """It ended under the old weights in the same moment: stored as it is it were dropped."""
    scene = Scene(step=1)
    await settled()
    scene.sample.released = True
    await scene.engine.answer(TEXT)
    output = await scene.out()
    assert (output.finish_reason, output.tokens.tolist()) == ("abort", TEXT)


async def test_a_release_that_comes_too_late_keeps_what_is_good() -> None:
    scene = Scene(step=0)
    await settled()
    scene.sample.released = True
    await scene.engine.answer(TEXT)
    output = await scene.out()
    assert (output.finish_reason, output.versions) == ("stop", [(0, 50)])


@pytest.mark.parametrize(("came", "handed"), [(TEXT[:3], TEXT), ([*TEXT[:3], 7], [*TEXT[:3], 7]), ([], TEXT)])
async def test_a_release_in_the_middle_of_verification_loses_nothing(came: list[int], handed: list[int]) -> None:
    scene = Scene(step=0, begun=TEXT)
    await settled()
    assert list(scene.engine.tasks[0].carried) == TEXT
    scene.sample.released = True
    await scene.engine.answer(came, "abort")
    assert (await scene.out()).tokens.tolist() == handed


async def test_what_is_written_ahead_is_parked_and_then_verified() -> None:
    scene = Scene(step=1)
    await settled()
    await scene.engine.answer(TEXT)
    assert scene.parked == [scene.sample.id]
    await scene.load(1)
    assert list(scene.engine.tasks[1].carried) == TEXT
    await scene.engine.answer([*TEXT[:9], 7, 8])
    assert (await scene.out()).versions == [(1, 11)]
    assert scene.sample.ahead == (50, 9)


async def test_what_runs_ahead_is_stopped_for_the_load_and_goes_on() -> None:
    scene = Scene(step=1)
    await settled()
    await scene.load(1)
    assert scene.engine.cancelled == [scene.sample.id]
    await scene.engine.answer(TEXT[:5], "abort", version=0)
    assert list(scene.engine.tasks[1].carried) == TEXT[:5]
    await scene.engine.answer(TEXT)
    assert (await scene.out()).tokens.tolist() == TEXT
    assert scene.parked == []
    assert scene.sample.ahead == (5, 5)


async def test_one_that_is_released_before_it_begins_is_never_begun() -> None:
    scene = Scene(step=0, begun=TEXT)
    scene.sample.released = True
    assert (await scene.out()).tokens.tolist() == TEXT
    assert scene.engine.tasks == []


async def test_a_cancelled_one_leaves_without_a_word() -> None:
    scene = Scene(step=1)
    await settled()
    await scene.engine.answer(TEXT)
    scene.sample.cancelled = True
    await scene.generation.notify()
    assert await asyncio.wait_for(scene.task, 60) is None
