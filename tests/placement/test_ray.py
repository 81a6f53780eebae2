"""What is asked of a real Ray, and what is heard of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.cluster.machines import Machines
from rhymed.placement.ray import cluster
from rhymed.placement.ray.guardian import Ended, Order
from rhymed.placement.ray.placer import Change, Start, Stop, ToPlacer
from tests.packages import needs

pytestmark = [needs("ray"), pytest.mark.slow, pytest.mark.thorough]

WITHOUT = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rhymed":
            raise ModuleNotFoundError("No module named 'rhymed'")


sys.meta_path.insert(0, Absent())
"""
SLEEPS = "import time\ntime.sleep(600)\n"


class Connection:
    def __init__(self, placer: asyncio.subprocess.Process) -> None:
        self.placer = placer

    def say(self, word: ToPlacer) -> None:
        assert self.placer.stdin is not None
        self.placer.stdin.write(msgspec.json.encode(word) + b"\n")

    async def hear(self) -> Change:
        assert self.placer.stdout is not None
        line = await asyncio.wait_for(self.placer.stdout.readline(), 60)
        return msgspec.json.decode(line, type=Change)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(1, cpus=1) as found:
        yield found


@pytest.fixture
async def ray(machines: Machines) -> AsyncIterator[Connection]:
    placer, _ = await cluster.connect("a test", machines.address)
    yield Connection(placer)
    assert placer.stdin is not None
    placer.stdin.close()
    await placer.wait()


def start(number: int, folder: Path, cpus: float) -> Start:
    """A process that sleeps, in place of rhymed's."""
    (folder / "rhymed").mkdir(exist_ok=True)
    (folder / "rhymed" / "__main__.py").write_text(SLEEPS)
    environment = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    order = Order([], environment, {}, str(folder / f"{number}.out"), "127.0.0.1:9")
    return Start(number, f"rollout-{number}", order, cpus=cpus)


async def test_what_is_not_wanted_while_it_waits_for_a_place_is_not_started_later(ray: Connection, tmp_path) -> None:
    ray.say(start(1, tmp_path, 1))
    assert await ray.hear() == Change(1)
    ray.say(start(2, tmp_path, 1))
    ray.say(Stop(2, "terminate"))
    assert await ray.hear() == Change(2, ended=Ended(-15, ""))
    ray.say(Stop(1, "terminate"))
    assert await ray.hear() == Change(1, ended=Ended(-15, ""))
    ray.say(start(3, tmp_path, 1))
    assert await ray.hear() == Change(3)
    ray.say(Stop(3, "kill"))
    ended = (await ray.hear()).ended
    assert ended is not None
    assert ended.status < 0
    assert not (tmp_path / "2.out").exists()


async def test_a_machine_without_rhymed_is_a_sentence_and_no_lost_place(
    machines: Machines, ray: Connection, tmp_path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    machines.add(cpus=2, environment={"PYTHONPATH": str(tmp_path)})
    ray.say(start(1, tmp_path, 2))
    assert await ray.hear() == Change(
        1, ended=Ended(1, "ModuleNotFoundError: No module named 'rhymed': every node needs the same rhymed")
    )
