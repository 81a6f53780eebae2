"""Starts the processes of a run on this machine, starts again what dies, and leaves nothing behind.

Owns child processes, each in a session of its own so that an engine's children go with it. One that keeps dying is
given up, and the run with it, but only while the run does not move (`moved`): what gets on, however often something
dies, is not ended by us. Knows nothing of samples: what a restarted process has to do it learns from the broker and
the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.config import Config
from rhymed.config.load import is_setting
from rhymed.service.service import EX_HOPELESS

log = logging.getLogger(__name__)

STOP_S = 12.0  # from SIGTERM to SIGKILL
WORKERS = ("rollout", "reward")  # whose deaths never set a run back
MAX_RESTARTS = 5  # in a row, while the run does not move
QUICK_S = 10.0  # one that dies sooner waits longer before it is started again
LONGEST_PAUSE_S = 30.0
FULL_BYTES = 64 << 10  # less free than this, and a process may not be able to say why it ended
LEFT_S = 8.0  # one that left by itself was told of the run's end, or was sent away: by then we know which


@dataclass(frozen=True)
class Command:
    """One process to be kept running."""

    name: str
    argv: Sequence[str]


@dataclass
class Child:
    """A command and its present process."""

    command: Command
    process: asyncio.subprocess.Process | None = None
    started: float = 0.0
    restarts: int = 0  # since the run moved, or it lived long
    quick: int = 0  # times in a row that it died soon
    judged: float = 0.0  # when it died last
    wrote_from: int = 0  # bytes of output that earlier processes left
    left: bool = False  # it ended by itself, without an error
    task: asyncio.Task[None] | None = field(default=None, repr=False)


def commands(config: Config, config_file: Path) -> list[Command]:
    """What `rhymed run` starts, in this order; see `_stages` for how it is stopped."""

    def command(name: str, *arguments: str) -> Command:
        return Command(name, [sys.executable, "-m", "rhymed", *arguments, str(config_file)])

    def worker(role: str, name: str) -> Command:
        return command(name, "worker", "--role", role, "--name", name)

    return [
        command("store", "store"),
        command("broker", "broker"),
        worker("trainer", "trainer"),
        *(worker("rollout", f"rollout-{i}") for i in range(config.rollout.workers)),
        *(worker("reward", f"reward-{i}") for i in range(config.reward.workers)),
    ]


class Supervisor:
    """`async with Supervisor(…) as s: await s.failed.wait()`; `tell` receives one line an event, for people."""

    def __init__(self, commands: Sequence[Command], logs: Callable[[str], Path], tell: Callable[[str], None]) -> None:
        self.children = [Child(command) for command in commands]
        self.failure = ""  # what ended the run, for people
        self.mistake = False  # it was something that a person has to change
        self.failed = asyncio.Event()
        self._logs = logs
        self._tell = tell
        self._closing = False
        self._moved_at = self._further_at = 0.0

    def moved(self, *, further: bool) -> None:
        """The run has got on. `further`: than ever before; what was set back and comes there again has not."""
        self._moved_at = time.monotonic()
        if further:
            self._further_at = self._moved_at

    async def __aenter__(self) -> Supervisor:
        for child in self.children:
            child.task = asyncio.create_task(self._keep(child))
        return self

    async def __aexit__(self, *ended: object) -> None:
        self._closing = True
        for stage in _stages(self.children):
            await _end(stage)

    def left(self, name: str) -> bool:
        """It ended without an error and has not been started again."""
        return any(child.left for child in self.children if child.command.name == name)

    async def _keep(self, child: Child) -> None:
        """Run the command until it succeeds, we close, or it has failed too often."""
        while not self._closing:
            status = await self._run(child)
            child.left = status == 0
            if self._closing or (child.left and child.command.name == "broker"):
                return
            self._judge(child)
            hopeless = status == EX_HOPELESS or (status != 0 and bool(self._full_disk(child)))
            if hopeless or child.restarts == MAX_RESTARTS:
                self.mistake = hopeless
                self._give_up(child)
                return
            pause_s = LEFT_S if child.left else min(LONGEST_PAUSE_S, 0.5 * 2 ** max(0, child.quick - 1))
            child.restarts += 1
            if not child.left:
                why = f"{_reason(status)}: {self._last_words(child)}" if status > 0 else _reason(status)
                self._tell(f"{child.command.name} ended ({why}); starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            if child.left and not self._closing:
                self._tell(f"{child.command.name} had left; starting it again")

    def _judge(self, child: Child) -> None:
        """What is held against it: as long as the run gets on, nothing.

        One whose death sets the run back is not excused by what is only made up for.
        """
        now = time.monotonic()
        child.quick = child.quick + 1 if now - child.started < QUICK_S else 0
        worker = child.command.name.partition("-")[0] in WORKERS
        if (self._moved_at if worker else self._further_at) > child.judged:
            child.restarts = 0
        child.judged = now

    def _give_up(self, child: Child) -> None:
        times = f"{child.restarts + 1} times" if child.restarts else "once and for all"
        self.failure = f"{child.command.name} ended {times}: {self._last_words(child)}\nsee {self._output(child)}"
        self.failed.set()

    def _last_words(self, child: Child) -> str:
        """Why its last process ended, as far as that could be written down."""
        if full := self._full_disk(child):
            return full
        written = self._output(child).read_bytes()[child.wrote_from :].decode(errors="replace")
        lines = written.strip().splitlines() or ["it said nothing"]
        return lines[-1].removeprefix("rhymed: ")

    def _full_disk(self, child: Child) -> str:
        """What keeps a process from going on, and from saying so."""
        folder = self._output(child).parent
        return f"the disk under {folder} is full: make room" if shutil.disk_usage(folder).free < FULL_BYTES else ""

    async def _run(self, child: Child) -> int:
        output = self._output(child)
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as stream:
            child.wrote_from = stream.tell()
            child.process = await asyncio.create_subprocess_exec(
                *child.command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env={
                    **_inherited(),
                    "RHYMED_SUPERVISED": str(output.parent),
                    "RHYMED_SUPERVISOR": str(os.getpid()),
                },
            )
        child.started, child.left = time.monotonic(), False
        try:
            return await child.process.wait()
        finally:
            _signal(child, signal.SIGKILL)  # its session may still hold an engine

    def _output(self, child: Child) -> Path:
        return self._logs(child.command.name).with_suffix(".out")


def _stages(children: Sequence[Child]) -> list[list[Child]]:
    """Who is ended together, in this order: workers hand back to broker and store what they have in hand."""
    last = ("broker", "store")
    stages = [[child for child in children if child.command.name not in last]]
    stages += [[child for child in children if child.command.name == name] for name in last]
    return [stage for stage in stages if stage]


async def _end(children: Sequence[Child]) -> None:
    tasks = [child.task for child in children if child.task is not None]
    for child in children:
        _ask_to_end(child)
        if child.task is not None and child.process is not None and child.process.returncode is not None:
            child.task.cancel()  # it only waits to start the process again
    await asyncio.wait(tasks, timeout=STOP_S)
    for child in children:
        _signal(child, signal.SIGKILL)  # also an engine's children that outlived their parent
    for stuck in (await asyncio.wait(tasks, timeout=STOP_S))[1]:
        stuck.cancel()


def _ask_to_end(child: Child) -> None:
    """Only the leader is asked: it ends its own children when it has handed back what they made."""
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.terminate()


def _signal(child: Child, number: signal.Signals) -> None:
    """To the whole session, also when its leader has ended."""
    if child.process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)


def _reason(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _inherited() -> dict[str, str]:
    """The environment without settings: the run's configuration has them, or what `-o` said instead."""
    return {name: value for name, value in os.environ.items() if not is_setting(name)}
