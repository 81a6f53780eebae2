"""What tools do that they should not: each hurts its own sample only, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.errors import EnvironmentFailed
from tests.workers.environment.pools import Make, ask, maker, told

TOOLS = '''
import os, struct, sys, threading, time

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
        assert await told(pool, tool, how="noise") == "said"
        assert await told(pool, tool, how="closed") == "closed"
        while (state := await told(pool, tool, how="put_back")) != "[True, False]":
            assert tool == "later", state  # after async calls the process tidies up when nothing is asked
        assert await told(pool, tool, how="surrogate") == "?"
        assert await told(pool, tool, how="texts") == "one two"
        assert await told(pool, tool, how="long") == "a" * (1 << 16)
        for how, why in (
            ("exit", "SystemExit: 3"),
            ("interrupt", "KeyboardInterrupt"),
            ("images", f"tool {tool} returned image: policies of rhymed read text alone"),
        ):
            with pytest.raises(EnvironmentFailed, match=why):
                await ask(pool, tool, how=how)
        assert await told(pool, "fine") == "fine"
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
            assert await told(pool, "fine") == "fine"
