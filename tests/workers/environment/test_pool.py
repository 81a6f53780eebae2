"""Real processes with tools and environments: what they answer, and what a bad one costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import HOPELESS, EnvironmentFailed, EnvironmentLost, EnvironmentUnusable
from rhymed.core.run import edited, provenance
from rhymed_workers.environment.process import EnvironmentProcess
from rhymed_workers.environment.protocol import Close, Stepped
from rhymed_workers.sandbox import jailed
from rhymed_workers.sessions.calls import Read, Wanted
from tests.workers.environment.pools import CHAT, Make, ask, maker, reported

TOOLS = '''
import asyncio, os, sys, time

def add(a: int, b: int = 1) -> int:
    """Adds.

    Args:
        a: First.
        b: Second.
    """
    print("noise", flush=True)
    return a + b

async def later(text: str) -> dict:
    """Waits.

    Args:
        text: Returned.
    """
    await asyncio.sleep(0)
    return {"text": text}

def misbehave(how: str) -> str:
    """Does what it should not.

    Args:
        how: Which way.
    """
    if how == "raise":
        raise ValueError("no such luck")
    if how == "exit":
        sys.exit(3)
    if how == "die":
        os._exit(7)
    while True:
        time.sleep(0.01)

add.idempotent = True

class Tool:
    """As verl's decorator leaves it."""
    def __init__(self, fn): self.fn = fn

wrapped = Tool(add)

def bare(a):
    return a
'''

GAME = '''
class Game:
    def __init__(self, most=9):
        self.most = most

    def reset(self, secret, **row):
        self.secret, self.guesses = secret, 0
        return f" Guess a number up to {self.most}."

    def guess(self, number: int) -> str:
        """Guesses.

        Args:
            number: The guess.
        """
        self.guesses += 1
        if number < 0:
            raise IndexError("below all")
        return "right" if number == self.secret else "higher" if number < self.secret else "lower"

    def get_reward(self):
        return 1.0 / self.guesses if self.guesses else 0.0

class Broken(Game):
    def reset(self, **row):
        raise RuntimeError("no board")

class Text:
    def __init__(self, env_config, extras):
        self.turns, self.limit = 0, extras["secret"]

    def init(self, prompt):
        return [*prompt, {"role": "user", "content": "Go."}], {}

    def step(self, action):
        self.turns += 1
        done = self.turns >= self.limit
        return {"observations": [] if done else [{"role": "user", "content": action[::-1]}],
                "reward": 0.5 if done else None, "done": done, "metadata": {}}

class NotANumber(Text):
    def step(self, action):
        return {"observations": [], "reward": float("nan"), "done": True}
'''


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path, TOOLS + GAME)


async def test_functions_are_called_and_their_results_are_messages(make: Make) -> None:
    async with make(tools="add,later,misbehave") as pool:
        assert pool.names == {"add", "later", "misbehave"}
        assert pool.idempotent == {"add"}
        schema = pool.about.tools[0]["function"]
        assert (schema["name"], schema["parameters"]["required"]) == ("add", ["a"])
        assert await pool.open("a", {}, CHAT) == (CHAT, ["add", "later", "misbehave"])
        both = await pool.step("a", Read("", [Wanted("add", {"a": 2}), Wanted("later", {"text": "ä"})]), last=False)
        assert both.messages == [
            {"role": "tool", "name": "add", "content": "3"},
            {"role": "tool", "name": "later", "content": "{'text': 'ä'}"},
        ]
        assert not both.done
        assert [call.error for call in both.calls] == ["", ""]
        assert (await pool.step("a", Read("That is all."), last=False)) == Stepped(done=True)


async def test_numbers_of_any_size_reach_a_tool(make: Make) -> None:
    async with make(tools="add") as pool:
        assert await reported(pool, "add", a=10**30, b=-1) == str(10**30 - 1)


async def test_what_a_tool_raises_is_an_answer(make: Make) -> None:
    async with make(tools="add,misbehave") as pool:
        for stepped, why in (
            (await ask(pool, "misbehave", how="raise"), "no such luck"),
            (await ask(pool, "multiply", a=1), "there is no tool 'multiply'; there are: add, misbehave"),
            (await ask(pool, "add", c=1), "missing a required argument: 'a'"),
            (await pool.step("a", Read("", [], "a call is not JSON"), last=False), "a call is not JSON"),
        ):
            assert not stepped.done
            assert why in stepped.messages[0]["content"]
            assert why in stepped.calls[0].error


@pytest.mark.parametrize(
    ("how", "why"),
    [("exit", "SystemExit: 3"), ("die", "exit status 7"), ("hang", "took longer than environment.timeout_s = 2")],
)
async def test_a_tool_that_ends_its_process_or_hangs_is_a_failure_and_the_pool_goes_on(
    make: Make, how: str, why: str
) -> None:
    async with make(tools="add,misbehave", timeout_s=2.0 if how == "hang" else 60.0) as pool:
        with pytest.raises(EnvironmentFailed, match=why):
            await ask(pool, "misbehave", how=how)
        assert (await ask(pool, "add", a=1)).messages[0]["content"] == "2"


async def test_methods_of_a_class_are_tools_with_a_state_of_each_sample(make: Make) -> None:
    async with make(factory="Game", args={"most": 5}) as pool:
        assert pool.names == {"guess"}
        begun, tools = await pool.open("a", {"secret": 3, "prompt": "Begin."}, CHAT)
        assert tools == ["guess"]
        assert begun == [{"role": "user", "content": "Begin. Guess a number up to 5."}]
        await pool.open("b", {"secret": 1}, CHAT)
        assert (await ask(pool, "guess", "a", number=1)).messages[0]["content"] == "higher"
        assert (await ask(pool, "guess", "b", number=1)).messages[0]["content"] == "right"
        assert "IndexError" in (await ask(pool, "guess", "a", number=-1)).calls[0].error
        done = await pool.step("a", Read("I give up."), last=False)
        assert (done.done, done.reward) == (True, 0.5)
        last = await pool.step("b", Read("", [Wanted("guess", {"number": 2})]), last=True)
        assert (last.done, last.reward) == (False, 0.5)
        await pool.close("a")
        assert (pool.has("a", 3), pool.has("b", 2)) == (False, True)
        assert not pool.has("b", 1), "of a turn that another worker's environment saw, it knows nothing"


async def test_an_environment_that_reads_text(make: Make) -> None:
    async with make(factory="Text") as pool:
        assert pool.names == set()
        begun, _ = await pool.open("a", {"secret": 2}, CHAT)
        assert begun == [*CHAT, {"role": "user", "content": "Go."}]
        stepped = await pool.step("a", Read("abc"), last=False)
        assert (stepped.messages, stepped.done, stepped.reward) == ([{"role": "user", "content": "cba"}], False, None)
        stepped = await pool.step("a", Read("abc"), last=False)
        assert (stepped.messages, stepped.done, stepped.reward) == ([], True, 0.5)


async def test_an_environment_that_raises_is_broken_in_words(make: Make) -> None:
    async with make(factory="Broken") as pool:
        with pytest.raises(EnvironmentFailed, match=r"Broken raised RuntimeError: no board \(.*mine.py, line \d+\)"):
            await pool.open("a", {"secret": 1}, CHAT)
    async with make(factory="NotANumber") as pool:
        await pool.open("a", {"secret": 1}, CHAT)
        with pytest.raises(EnvironmentFailed, match="gave the reward nan: a finite number expected"):
            await pool.step("a", Read("x"), last=False)


async def test_a_request_that_cannot_be_written_is_not_waited_for(make: Make) -> None:
    async with make(tools="add") as pool:
        with pytest.raises(UnicodeEncodeError):
            await pool.step("a", Read("\ud800"), last=False)
        assert [process.waiting for process in pool._processes] == [0]


def within(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(inner for child in children for inner in within(int(child)))]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_process_that_hangs_outside_of_any_request_is_killed(make: Make) -> None:
    async with make(tools="add", timeout_s=0.1) as pool:
        (process,) = pool._processes
        stopped = within(process.pid)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        while not all(map(is_stopped, stopped)):
            await asyncio.sleep(0.001)
        with pytest.raises(EnvironmentLost, match="in a process that did nothing, and was killed"):
            await process.ask(Close("a"))
        await asyncio.wait_for(process._process.wait(), 60.0)


async def test_a_killed_process_loses_its_environments(make: Make) -> None:
    async with make(factory="Game") as pool:
        await pool.open("a", {"secret": 3}, CHAT)
        os.kill(pool.pids[0], signal.SIGKILL)
        while pool.has("a", 0):
            await asyncio.sleep(0)
        with pytest.raises(EnvironmentLost, match="the environment of a is lost"):
            await ask(pool, "guess", "a", number=1)
        await pool.open("a", {"secret": 3}, CHAT)
        assert (await ask(pool, "guess", "a", number=3)).messages[0]["content"] == "right"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tools": "missing"}, "has no function 'missing'"),
        ({"tools": "bare"}, r"tool bare \(.*mine.py, line \d+\) needs type hints and a docstring"),
        ({"factory": "Nothing"}, "has no function 'Nothing'"),
    ],
)
async def test_code_that_cannot_be_used_is_reported_at_the_start(
    make: Make, settings: dict[str, str], why: str
) -> None:
    with pytest.raises(EnvironmentUnusable, match=why) as raised:
        async with make(**settings):
            pass
    assert isinstance(raised.value, HOPELESS), "the worker is not started again: the run ends with this error"


async def test_what_kills_a_process_while_it_loads_is_no_fault_of_the_code(tmp_path: Path) -> None:
    make = maker(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(EnvironmentFailed, match="signal SIGKILL") as raised:
        async with make(tools="add"):
            pass
    assert not isinstance(raised.value, HOPELESS)


async def test_what_a_decorator_wrapped_is_a_tool(make: Make) -> None:
    async with make(tools="wrapped") as pool:
        assert pool.names == {"add"}
        assert (await ask(pool, "add", a=4)).messages[0]["content"] == "5"


ONCE = """
import os, pathlib
mark = pathlib.Path(__file__).with_suffix(".mark")
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)
"""


async def test_a_process_that_is_killed_while_it_loads_is_started_again(tmp_path: Path) -> None:
    async with maker(tmp_path, ONCE + TOOLS)(tools="add") as pool:
        assert pool.names == {"add"}


async def test_a_process_that_is_killed_whenever_it_loads_is_not(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"loading .*mine.py:add: the process ended with signal SIGKILL"):
        async with maker(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")(tools="add"):
            pass


async def test_tools_are_called_while_another_process_starts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make(tools="later,add", processes=2) as pool:
        held, go = asyncio.Event(), asyncio.Event()
        start = EnvironmentProcess.start

        async def late(config: Config) -> EnvironmentProcess:
            held.set()
            await go.wait()
            return await start(config)

        monkeypatch.setattr(EnvironmentProcess, "start", late)
        first = asyncio.create_task(reported(pool, "add", a=1, b=2))
        second = asyncio.create_task(reported(pool, "add", a=3, b=4))
        assert await asyncio.wait_for(asyncio.gather(first, second), 60) == ["3", "7"]
        await held.wait()
        assert len(pool.pids) == 1
        go.set()
        async with asyncio.timeout(60):
            while len(pool.pids) < 2:
                await asyncio.sleep(0.01)


ORPHAN = """
import ctypes, os, signal, sys, time

def survive() -> str:
    \"\"\"Prints when nobody reads what it prints any more, as between its guard's death and its own.\"\"\"
    ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
    init = os.getppid()
    guard = int(open(f"/proc/{init}/stat").read().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    while os.getppid() == init:
        time.sleep(0.001)
    print("noise", flush=True)
    print("noise", file=sys.stderr, flush=True)
    return "as ever"
"""


async def test_a_print_does_not_fail_when_the_guard_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jailed, "JAIL_OPTIONS", {"isolate": False, "group": False})
    async with maker(tmp_path, ORPHAN)(tools="survive") as pool:
        assert await reported(pool, "survive") == "as ever"


async def test_no_process_takes_tools_that_were_edited(make: Make, tmp_path: Path) -> None:
    config = Config.model_validate({"environment": {"tools": f"{tmp_path}/mine.py:add"}})
    edited.start(tmp_path, provenance.now([], config))
    async with make(tools="add", run=tmp_path) as pool:
        (tmp_path / "mine.py").write_text(TOOLS.replace("return a + b", "return a - b"))
        assert await reported(pool, "add", a=1, b=2) == "3"
        os.kill(pool.pids[0], signal.SIGKILL)

        async def call_until_it_is_seen() -> None:
            while True:
                with contextlib.suppress(EnvironmentLost):
                    assert await reported(pool, "add", a=1, b=2) == "3"
                await asyncio.sleep(0.01)

        with pytest.raises(
            EnvironmentUnusable, match=r"mine.py \(environment\) was edited while the run was working"
        ):
            await call_until_it_is_seen()
