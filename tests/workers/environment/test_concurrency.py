"""A process has many requests at once; what hangs is ended alone if that can be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rhymed.core.errors import EnvironmentFailed, EnvironmentLost
from rhymed_workers.environment import process
from rhymed_workers.sessions.calls import Read, Wanted
from tests.workers.environment.pools import CHAT, Make, ask, calls, maker, reported

TOOLS = '''
import asyncio, os, signal, threading, time

here, everybody = 0, asyncio.Event()

async def meet(count: int) -> str:
    """Waits until so many are here.

    Args:
        count: How many.
    """
    global here
    here += 1
    if here == count:
        here = 0
        everybody.set()
    await everybody.wait()
    return f"met in {os.getpid()}"

async def nap(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "rested"

async def stay() -> str:
    """Waits, and cannot be cancelled."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def block() -> str:
    """Waits without awaiting."""
    while True:
        time.sleep(0.01)

def hang() -> str:
    """Waits forever."""
    while True:
        time.sleep(0.01)

most, busy, lock = 0, 0, threading.Lock()

def work(seconds: float) -> str:
    """Takes its time.

    Args:
        seconds: How long.
    """
    global most, busy
    with lock:
        busy += 1
        most = max(most, busy)
    time.sleep(seconds)
    busy -= 1
    return f"{most} at once"

def alarm() -> str:
    """Uses a signal, which works in the main thread alone."""
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while not rung:
        time.sleep(0.01)
    return "rung"

class Slow:
    def __init__(self):
        self.met = "not"

    async def reset(self, people, **row):
        self.met = await meet(people)
        return " We met."

    async def rest(self, seconds: float) -> str:
        """Rests.

        Args:
            seconds: How long.
        """
        return await nap(seconds)

    def stop(self) -> str:
        """Hangs."""
        return hang()

    async def get_reward(self):
        await asyncio.sleep(0)
        return 1.0
'''


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path, TOOLS)


async def test_hundreds_wait_for_async_tools_in_one_process(make: Make) -> None:
    async with make(tools="meet") as pool:
        assert pool.slots == 256
        met = await asyncio.gather(*(reported(pool, "meet", str(number), count=200) for number in range(200)))
        assert len(set(met)) == 1


async def test_the_calls_of_a_turn_are_made_together_if_they_are_async(make: Make) -> None:
    async with make(tools="work,meet") as pool:
        mixed = [Wanted("meet", {"count": 2}), Wanted("work", {"seconds": 0}), Wanted("meet", {"count": 2})]
        stepped = await pool.step("a", Read("", mixed), last=False)
        assert [message["name"] for message in stepped.messages] == ["meet", "work", "meet"]
        assert stepped.messages[1]["content"] == "1 at once"


async def test_sync_tools_run_one_at_a_time_in_the_main_thread(make: Make) -> None:
    async with make(tools="work,alarm") as pool:
        assert pool.slots == 8
        ran = await asyncio.gather(*(reported(pool, "work", seconds=0.02) for _ in range(8)))
        assert set(ran) == {"1 at once"}
        assert await reported(pool, "alarm") == "rung"


async def test_who_waits_for_others_is_not_late(make: Make) -> None:
    async with make(tools="work", timeout_s=4.0) as pool:
        ran = await asyncio.gather(*(reported(pool, "work", seconds=1.0) for _ in range(6)))
        assert set(ran) == {"1 at once"}


async def test_a_slow_async_call_is_cancelled_alone(make: Make) -> None:
    async with make(tools="nap,meet", timeout_s=3.0) as pool:
        (pid,) = pool.pids
        late = asyncio.create_task(ask(pool, "nap", seconds=600))
        both = Read("", [Wanted("nap", {"seconds": 600}), Wanted("nap", {"seconds": 0})])
        part, met = await asyncio.gather(pool.step("b", both, last=False), reported(pool, "meet", count=1))
        assert met.startswith("met")
        why = "took longer than 3 s (environment.timeout_s) and was cancelled"
        for stepped in (await late, part):
            assert why in stepped.messages[0]["content"]
            assert why in stepped.calls[0].error
        assert part.messages[1]["content"] == "rested"
        assert pool.pids == [pid]


@pytest.mark.parametrize("how", ["stay", "block", "hang"])
async def test_what_cannot_be_cancelled_costs_the_process_and_others_are_lost(
    make: Make, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    async with make(tools=f"{how},meet,nap", timeout_s=8.0) as pool:
        (pid,) = pool.pids
        stopped = asyncio.create_task(ask(pool, how))
        await asyncio.sleep(4.0)  # the other one must have time left when this one has none
        other = asyncio.create_task(ask(pool, "meet", "b", count=2))
        with pytest.raises(EnvironmentFailed, match=r"took longer than environment.timeout_s = 8 s") as failed:
            await stopped
        assert not isinstance(failed.value, EnvironmentLost)
        with pytest.raises(EnvironmentLost):
            await other
        assert await reported(pool, "nap", seconds=0) == "rested"
        assert pool.pids != [pid]


async def test_methods_of_many_samples_wait_together(make: Make) -> None:
    async with make(factory="Slow", timeout_s=60.0) as pool:
        assert pool.slots == 256
        begun = await asyncio.gather(*(pool.open(str(number), {"people": 50}, CHAT) for number in range(50)))
        assert {opened.chat[-1]["content"] for opened in begun} == {"Begin. We met."}
        assert {tuple(opened.tools) for opened in begun} == {("rest", "stop")}
        done = await asyncio.gather(*(pool.step(str(number), Read("Bye."), last=False) for number in range(50)))
        assert {stepped.reward for stepped in done} == {1.0}


async def test_a_process_that_is_killed_loses_the_environments_of_its_samples_alone(make: Make) -> None:
    async with make(factory="Slow", timeout_s=5.0, processes=2) as pool:
        await pool.open("a", {"people": 1}, CHAT)
        await pool.open("b", {"people": 1}, CHAT)
        await pool.open("c", {"people": 1}, CHAT)
        rest = asyncio.create_task(pool.step("b", calls("rest", seconds=0.5), last=False))
        with pytest.raises(EnvironmentFailed, match="took longer"):
            await pool.step("a", calls("stop"), last=False)
        assert (await rest).messages[0]["content"] == "rested"
        assert [pool.has(*one) for one in (("a", 0), ("b", 1), ("c", 0))] == [False, True, False]


async def test_who_leaves_costs_nobody_anything(make: Make) -> None:
    async with make(tools="nap,work", timeout_s=20.0) as pool:
        (pid,) = pool.pids
        asked = [
            asyncio.create_task(ask(pool, "nap", seconds=0.3)),
            asyncio.create_task(ask(pool, "work", seconds=0.3)),
        ]
        await asyncio.sleep(0.1)
        for each in asked:
            each.cancel()
        assert await reported(pool, "work", seconds=0) == "1 at once"
        assert await reported(pool, "nap", seconds=0.5) == "rested"
        assert pool.pids == [pid]
