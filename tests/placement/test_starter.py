"""The supervisor's side of a connection to Ray, with a process in the place of Ray's."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.placement.local import PlaceLost
from rhymed.placement.plan import Command, commands
from rhymed.placement.ray import cluster, starter
from rhymed.placement.ray.starter import RayStarter, starting
from rhymed.start.launch import supervisor
from rhymed.start.launch.supervisor import Supervisor

PLACER = """
import json, os, sys
heard = sys.argv[1]
say = lambda **word: print(json.dumps(word), flush=True)
say(type="Ready", head="", host="10.0.0.1", nodes=[{"host": "10.0.0.2", "cpus": 8}])
for line in sys.stdin:
    word = json.loads(line)
    with open(heard, "a") as file:
        file.write(line)
    if word["type"] == "Start" and word["name"] != "rollout-1":
        say(id=word["id"])
    if word["type"] == "Start" and word["name"] == "reward-0":
        say(id=word["id"], lost="the node died")
    if word["type"] == "Stop" and word["how"] == "terminate":
        say(id=word["id"], ended={"status": -15, "words": "as asked"})
"""


class Fake:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "placer.py").write_text(PLACER)
        self.file = folder / "heard"
        monkeypatch.setattr(cluster, "PLACER", (sys.executable, str(folder / "placer.py"), str(self.file)))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        self.config = Config(
            run={"folder": str(folder), "name": "r"},
            rollout={"engine": "trace", "workers": 2},
            trainer={"engine": "trace"},
            placement={"engine": "ray"},
        )
        self.layout = layout_of(self.config)
        self.layout.folder.mkdir()
        self.layout.config.write_text(self.config.model_dump_json())
        self.events: list[str] = []

    def heard(self, text: str) -> int:
        return self.file.read_text().count(text) if self.file.exists() else 0

    def starter(self) -> AbstractAsyncContextManager[RayStarter]:
        return starting(self.config, self.layout, self.events.append)

    def command(self, name: str) -> Command:
        return next(one for one in commands(self.config, self.layout.config) if one.name == name)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_process_is_placed_asked_to_end_and_its_end_is_heard_of(fake: Fake) -> None:
    async with fake.starter() as ray:
        process = await ray.start(fake.command("trainer"), fake.layout.log("trainer"))
        assert process.alive
        process.terminate()
        assert await process.ended() == -15
        assert process.last_words() == "as asked"
    assert fake.heard('"trainer"') >= 1


async def test_a_place_that_is_lost_is_no_failure_and_another_one_is_looked_for(fake: Fake, monkeypatch) -> None:
    monkeypatch.setattr(starter, "LONG_S", 0.1)
    losses: list[int] = []
    monkeypatch.setattr(supervisor, "restart_pause_s", lambda row, *_: losses.append(row) or 0.02)
    async with fake.starter() as ray:
        process = await ray.start(fake.command("reward-0"), fake.layout.log("reward-0"))
        with pytest.raises(PlaceLost, match="the node died"):
            await process.ended()
        both = [fake.command("reward-0"), fake.command("rollout-1")]
        async with Supervisor(both, fake.layout.log, fake.events.append, ray) as run:
            await until(lambda: fake.heard('"name":"reward-0"') > 3)
            await until(lambda: any("waits for a place" in event for event in fake.events))
            assert not run.failed.is_set()
            assert all(child.restarts == 0 for child in run.children)
    assert losses[:3] == [1, 2, 3], "a machine on which nothing stays is not asked without a pause"
    assert any("reward-0: its place is lost (the node died); starting it in another" in one for one in fake.events)
    assert "rollout-1 waits for a place in Ray's cluster (1 CPU)" in fake.events


async def test_without_ray_processes_continue_and_are_placed_again_when_it_is_back(fake: Fake) -> None:
    async with fake.starter() as ray:
        process = await ray.start(fake.command("rollout-0"), fake.layout.log("rollout-0"))
        working = cluster.PLACER
        cluster.PLACER = (sys.executable, "-c", "raise SystemExit(69)")  # type: ignore[assignment]
        assert ray._placer is not None
        ray._placer.kill()
        await until(lambda: any("the run continues" in event for event in fake.events))
        assert process.alive
        later = asyncio.create_task(ray.start(fake.command("trainer"), fake.layout.log("trainer")))
        cluster.PLACER = working
        with pytest.raises(PlaceLost, match="Ray was away"):
            await asyncio.wait_for(process.ended(), 60)
        with pytest.raises(PlaceLost):
            await asyncio.wait_for(later, 60)
        again = await ray.start(fake.command("rollout-0"), fake.layout.log("rollout-0"))
        assert again.alive
    assert "Ray is back" in fake.events


async def test_a_run_that_ends_without_ray_does_not_wait_for_it(fake: Fake) -> None:
    async with fake.starter() as ray:
        process = await ray.start(fake.command("rollout-0"), fake.layout.log("rollout-0"))
        assert ray._placer is not None
        ray._placer.kill()
        await ray._placer.wait()
        process.terminate()
        assert await asyncio.wait_for(process.ended(), 5) < 0
