"""What tools do that they should not: each hurts its own sample only, in words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rhymed.core.errors import EnvironmentFailed
from tests.workers.environment.pools import Make, ask, maker, reported

TOOLS = '''
import os, re, signal, struct, sys, threading, time

def fine() -> str:
    """Works."""
    return "fine"

def misbehave(how: str) -> object:
    """Does what it should not.

    Args:
        how: Which way.
    """
    return WAYS[how]()

async def later(how: str) -> object:
    """Likewise, as a coroutine.

    Args:
        how: Which way.
    """
    return WAYS[how]()

def memory():
    return len(bytearray(1 << 40))

def files():
    kept = []
    while True:
        kept.append(open("/dev/null"))

def deep():
    return deep()

class Nested(list):
    def __repr__(self):
        return repr([self])

def endless_repr():
    return Nested()

def noise():
    print("x" * (1 << 22), flush=True)
    sys.stderr.write("y" * (1 << 20))
    os.write(1, b"z" * (1 << 20))
    return "said"

def closed():
    sys.stdout.close()
    os.close(1)
    os.chdir("/")
    os.environ["HERE"] = "changed"
    return "closed"

def put_back():
    print("still here", flush=True)
    return [os.getcwd() != "/", "HERE" in os.environ]

def bomb():
    for _ in range(100_000):
        if os.fork() == 0:
            time.sleep(60)
    return "bombed"

def threads():
    for _ in range(100_000):
        threading.Thread(target=time.sleep, args=(60,)).start()

def segfault():
    import ctypes
    ctypes.string_at(0)

def forged():
    """A frame of our own on every open pipe: an answer to all numbers that one may guess."""
    body = b"\\x82\\xa4type\\xa6Answer\\xa6number\\x07"
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                os.write(int(name), struct.pack("<I", len(body)) + body)
        except OSError:
            pass
    return "forged"

def surrogate():
    return "\\ud800"

def exit():
    raise SystemExit(3)

def interrupt():
    raise KeyboardInterrupt

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no")

def unprintable():
    raise Unprintable

def long():
    return "a" * (1 << 24)

def images():
    return [{"type": "text", "text": "see"}, {"type": "image", "image": b""}]

def texts():
    return [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]

def regex():
    return re.match("(a|a)+$", "a" * 64 + "b")

def power():
    return 7 ** 10**9

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

WAYS = {name: found for name, found in list(globals().items()) if callable(found)}
'''


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path, TOOLS)


@pytest.mark.parametrize("tool", ["misbehave", "later"])
async def test_what_a_tool_can_raise_is_an_answer_and_costs_nothing(make: Make, tool: str) -> None:
    limits = {"open_files": 256, "file_mib": 1}
    async with make(tools=f"{tool},fine", reward=limits, memory_gib=1.0) as pool:
        (pid,) = pool.pids
        for how, error, read in (
            ("memory", "MemoryError", "{'error': ''}"),
            ("files", "OSError", "Too many open files"),
            ("deep", "RecursionError", "maximum recursion depth"),
            ("endless_repr", "RecursionError", "maximum recursion depth"),
            ("unprintable", "Unprintable", "Unprintable"),
        ):
            stepped = await ask(pool, tool, how=how)
            assert stepped.calls[0].error.startswith(error)
            assert read in stepped.messages[0]["content"]
        assert await reported(pool, tool, how="noise") == "said"
        assert await reported(pool, tool, how="closed") == "closed"
        while (state := await reported(pool, tool, how="put_back")) != "[True, False]":
            assert tool == "later", state  # after async calls the process tidies up when nothing is asked
        assert await reported(pool, tool, how="surrogate") == "?"
        assert await reported(pool, tool, how="texts") == "one two"
        assert await reported(pool, tool, how="long") == "a" * (1 << 16)
        for how, why in (
            ("exit", "SystemExit: 3"),
            ("interrupt", "KeyboardInterrupt"),
            ("images", f"tool {tool} returned image: policies of rhymed read text alone"),
        ):
            with pytest.raises(EnvironmentFailed, match=why):
                await ask(pool, tool, how=how)
        assert await reported(pool, "fine") == "fine"
        assert pool.pids == [pid]


@pytest.mark.parametrize("tool", ["misbehave", "later"])
async def test_what_ends_the_process_is_a_failure_in_words(make: Make, tool: str) -> None:
    async with make(tools=f"{tool},fine", reward={"processes_limit": 64}) as pool:
        for how, why in (
            ("segfault", "its process ended with signal SIGSEGV"),
            ("bomb", "it tried to start more than 64 processes|BlockingIOError"),
            ("forged", "its process ended with|an answer that it was not asked for"),
        ):
            try:
                stepped = await ask(pool, tool, how=how)
            except EnvironmentFailed as error:
                words = str(error)
            else:
                words = stepped.calls[0].error
            assert any(part in words for part in why.split("|")), words
            assert await reported(pool, "fine") == "fine"


@pytest.mark.parametrize(("tool", "how"), [("misbehave", "regex"), ("later", "power"), ("misbehave", "stopped")])
async def test_the_time_limit_holds_for_a_process_that_cannot_say_where_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch, tool: str, how: str
) -> None:
    """The interpreter's lock is held, or the process is stopped."""
    monkeypatch.setattr("rhymed_workers.environment.process.GRACE_S", 0.5)
    async with make(tools=f"{tool},fine", timeout_s=2.0) as pool:
        with pytest.raises(EnvironmentFailed, match=r"took longer than environment.timeout_s = 2 s and was killed"):
            async with asyncio.timeout(60.0):
                await ask(pool, tool, how=how)
        assert await reported(pool, "fine") == "fine"


FORKS = '''
import asyncio, os, sys, time

def note(line):
    with open(CALLS, "a") as file:
        file.write(f"{line}\\n")

def once(number: int, how: str) -> str:
    """May not be repeated, and leaves a child that returns.

    Args:
        number: Of the call.
        how: What the child does.
    """
    child = os.fork()
    if child:
        if number == 0:
            time.sleep(1.0)  # others wait meanwhile
        _, status = os.waitpid(child, 0)
        note(f"{number} {os.waitstatus_to_exitcode(status)}")
        return "parent"
    if how == "raise":
        raise ValueError
    if how == "exit":
        sys.exit(3)
    return "child"

async def later(number: int, how: str) -> str:
    """Likewise, as a coroutine, whose child waits before it returns.

    Args:
        number: Of the call.
        how: What the child does.
    """
    child = os.fork()
    if child == 0:
        if how == "return":
            await asyncio.sleep(0.01)
        return once.__name__
    await asyncio.sleep(0.1)
    while not os.waitpid(child, os.WNOHANG)[0]:
        await asyncio.sleep(0.01)
    note(number)
    return "parent"

def spin(seconds: float) -> str:
    """Hangs, after a child of it has returned.

    Args:
        seconds: How long.
    """
    if (child := os.fork()) == 0:
        return "child"
    os.waitpid(child, 0)
    time.sleep(seconds)
    return "parent"
'''


@pytest.mark.parametrize(
    ("tool", "how", "noted"),
    [("once", "return", "0"), ("once", "raise", "1"), ("once", "exit", "3"), ("later", "return", "")],
)
async def test_a_forked_child_that_returns_makes_no_calls(tmp_path: Path, tool: str, how: str, noted: str) -> None:
    calls = tmp_path / "calls.txt"
    make = maker(tmp_path, f"CALLS = {str(calls)!r}\n{FORKS}")
    async with make(tools=tool) as pool:
        said = await asyncio.gather(
            *(reported(pool, tool, str(number), number=number, how=how) for number in range(8))
        )
        assert said == ["parent"] * 8
        assert len(pool.pids) == 1
    expected = [f"{number} {noted}".strip() for number in range(8)]
    assert sorted(calls.read_text().splitlines()) == expected


async def test_a_forked_child_that_returns_leaves_the_time_limit(tmp_path: Path) -> None:
    make = maker(tmp_path, FORKS)
    async with make(tools="spin", timeout_s=2.0) as pool:
        with pytest.raises(EnvironmentFailed, match=r"took longer than environment.timeout_s = 2 s and was killed"):
            await ask(pool, "spin", seconds=1000.0)


async def test_a_module_that_forks_and_lets_the_child_go_on_is_loaded_once(tmp_path: Path) -> None:
    make = maker(tmp_path, f"import os\nos.fork()\nCALLS = ''\n{FORKS}")
    async with make(tools="spin") as pool:
        assert await reported(pool, "spin", seconds=0.0) == "parent"
