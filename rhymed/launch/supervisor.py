"""Starts the processes of a run on this machine, restarts those that end, and leaves none behind.

Owns child processes, each in a session of its own so that an engine's children end with it. A process that keeps
failing ends the run, but only if the run makes no progress meanwhile (`progressed`). Knows nothing of samples: a
restarted process learns its work from the broker and the store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.config import Reward, Rollout
from rhymed.config.load import is_setting
from rhymed.service.children import exit_reason, kill_session, last_lines, restart_pause_s, terminate
from rhymed.service.service import EX_HOPELESS

STOP_S = 12.0  # from SIGTERM to SIGKILL
WORKERS = ("rollout", "reward")  # their deaths never roll a run back
MAX_RESTARTS = 5  # in a row, while the run makes no progress
QUICK_S = 10.0  # the pause before a restart grows if the process lived shorter than this
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
FULL_BYTES = 64 << 10  # with less free disk, a process may not be able to write why it ended
LEFT_S = 8.0  # after a process ends without an error: by then the broker has ended too, if the run is over


@dataclass(frozen=True)
class Command:
    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # besides ours


@dataclass
class Child:
    command: Command
    output: Path  # its stdout and stderr
    process: Process | None = None
    started: float = 0.0
    restarts: int = 0  # since the run last progressed
    quick_failures: int = 0  # in a row
    ended: float = 0.0  # when its last process ended
    output_start: int = 0  # bytes of output that earlier processes wrote
    left: bool = False  # its last process ended without an error
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def last_words(self) -> str:
        """Why its last process ended, as far as it could write that down."""
        if full := self.full_disk():
            return full
        lines = last_lines(self.output, start=self.output_start) or ["no output"]
        return lines[-1].removeprefix("rhymed: ")

    def full_disk(self) -> str:
        """Why a process could neither continue nor say so; empty: there is room."""
        folder = self.output.parent
        return f"the disk under {folder} is full: make room" if shutil.disk_usage(folder).free < FULL_BYTES else ""

    async def run(self) -> int:
        """One process from start to end; returns its exit status."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as stream:
            self.output_start = stream.tell()
            self.process = await create_subprocess_exec(
                *self.command.argv,
                stdin=DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=_environment(self.output.parent) | dict(self.command.environment),
            )
        self.started, self.left = time.monotonic(), False
        try:
            return await self.process.wait()
        finally:
            kill_session(self.process)  # may still hold an engine


def commands(
    rollout: Rollout, reward: Reward, config_file: Path, environments: Mapping[str, Mapping[str, str]] | None = None
) -> list[Command]:
    """What `rhymed run` starts, in this order; see `_stages` for the order of stopping. `environments`: by name."""

    def command(name: str, *arguments: str) -> Command:
        argv = [sys.executable, "-m", "rhymed", *arguments, str(config_file)]
        return Command(name, argv, (environments or {}).get(name, {}))

    def worker(role: str, name: str) -> Command:
        return command(name, "worker", "--role", role, "--name", name)

    return [
        command("store", "store"),
        command("broker", "broker"),
        worker("trainer", "trainer"),
        *(worker("rollout", f"rollout-{i}") for i in range(rollout.workers)),
        *(worker("reward", f"reward-{i}") for i in range(reward.workers)),
    ]


class Supervisor:
    """`async with Supervisor(…) as s: await s.failed.wait()`; `report` receives one line per event, for people."""

    def __init__(
        self, commands: Sequence[Command], logs: Callable[[str], Path], report: Callable[[str], None]
    ) -> None:
        self.children = [Child(command, logs(command.name).with_suffix(".out")) for command in commands]
        self.failure = ""  # what ended the run, for people
        self.hopeless = False  # a restart cannot help: a person has to change something
        self.failed = asyncio.Event()
        self._report = report
        self._closing = False
        self._progressed_at = self._advanced_at = 0.0

    def progressed(self, *, further: bool) -> None:
        """The run has progressed. `further`: beyond every earlier point, so not only back to before a rollback."""
        self._progressed_at = time.monotonic()
        if further:
            self._advanced_at = self._progressed_at

    async def __aenter__(self) -> Supervisor:
        for child in self.children:
            child.task = asyncio.create_task(self._keep_alive(child))
        return self

    async def __aexit__(self, *ended: object) -> None:
        self._closing = True
        for stage in _stages(self.children):
            await _stop(stage)

    def left(self, name: str) -> bool:
        """The process ended without an error and has not been restarted."""
        return any(child.left for child in self.children if child.command.name == name)

    async def _keep_alive(self, child: Child) -> None:
        """Until we close, the broker has ended, or the command has failed too often."""
        while not self._closing:
            status = await child.run()
            child.left = status == 0
            if self._closing or (child.left and child.command.name == "broker"):
                return
            self._count_failure(child)
            hopeless = status == EX_HOPELESS or (status != 0 and bool(child.full_disk()))
            if hopeless or child.restarts == MAX_RESTARTS:
                self._give_up(child, hopeless)
                return
            pause_s = restart_pause_s(child.quick_failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            child.restarts += 1
            if child.left:
                await asyncio.sleep(LEFT_S)
                if not self._closing:
                    self._report(f"{child.command.name} had left; starting it again")
            else:
                reason = exit_reason(status) + (f": {child.last_words()}" if status > 0 else "")
                self._report(f"{child.command.name} ended ({reason}); starting it again in {pause_s:g} s")
                await asyncio.sleep(pause_s)

    def _count_failure(self, child: Child) -> None:
        """Earlier failures do not count if the run has progressed since the last one. Repeating steps after a
        rollback is progress for workers, but not for a process whose death rolls back."""
        now = time.monotonic()
        child.quick_failures = child.quick_failures + 1 if now - child.started < QUICK_S else 0
        worker = child.command.name.partition("-")[0] in WORKERS
        if (self._progressed_at if worker else self._advanced_at) > child.ended:
            child.restarts = 0
        child.ended = now

    def _give_up(self, child: Child, hopeless: bool) -> None:
        self.hopeless = hopeless
        times = f"{child.restarts + 1} times" if child.restarts else "once and for all"
        self.failure = f"{child.command.name} ended {times}: {child.last_words()}\nsee {child.output}"
        self.failed.set()


def _stages(children: Sequence[Child]) -> list[list[Child]]:
    """Groups that are stopped one after another: workers return what they hold to the broker and the store."""
    last = ("broker", "store")
    stages = [[child for child in children if child.command.name not in last]]
    stages += [[child for child in children if child.command.name == name] for name in last]
    return [stage for stage in stages if stage]


async def _stop(children: Sequence[Child]) -> None:
    tasks = [child.task for child in children if child.task is not None]
    for child in children:
        terminate(child.process)
        if child.task is not None and child.process is not None and child.process.returncode is not None:
            child.task.cancel()  # it only waits to restart the process
    await asyncio.wait(tasks, timeout=STOP_S)
    for child in children:
        kill_session(child.process)  # also an engine's children that outlived their parent
    for stuck in (await asyncio.wait(tasks, timeout=STOP_S))[1]:
        stuck.cancel()


def _environment(logs: Path) -> dict[str, str]:
    """Ours without settings, which the run's configuration holds already."""
    inherited = {name: value for name, value in os.environ.items() if not is_setting(name)}
    return inherited | {"RHYMED_SUPERVISED": str(logs), "RHYMED_SUPERVISOR": str(os.getpid())}
