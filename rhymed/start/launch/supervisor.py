"""Starts the processes of a run, restarts those that end, and leaves none behind.

Where and how a process runs is a `Starter`'s affair; the policy is the same everywhere. A process that keeps failing
ends the run, but only if the run makes no progress meanwhile (`progressed`). Knows nothing of samples: a
restarted process learns its work from the broker and the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rhymed.core.errors import HOPELESS, FilesLost
from rhymed.core.service.children import exit_reason, restart_pause_s
from rhymed.core.service.retry import FULL_S
from rhymed.core.service.service import EX_HOPELESS, EX_UNSTARTED
from rhymed.core.tasks import watched
from rhymed.placement.local import LocalStarter, PlaceLost, Running, Starter
from rhymed.placement.plan import Command

log = logging.getLogger(__name__)

STOP_S = 12.0  # from SIGTERM to SIGKILL
WORKERS = ("rollout", "environment", "reward")  # their deaths never roll a run back
MAX_RESTARTS = 5  # in a row, while the run makes no progress
QUICK_S = 10.0  # the pause before a restart grows if the process lived shorter than this
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
FULL_BYTES = 64 << 10  # with less free disk, a process may not be able to write why it ended
ROOM_S = 0.5  # between two looks at a full disk
NOT_STARTED = 71  # in place of an exit status; EX_OSERR
LEFT_S = 8.0  # after a process ends without an error: by then the broker has ended too, if the run is over


@dataclass
class Child:
    command: Command
    output: Path  # its stdout and stderr, on the machine where it runs
    running: Running | None = None
    started: float = 0.0
    restarts: int = 0  # since the run last progressed
    quick_failures: int = 0  # in a row
    quick_losses: int = 0  # of its place, in a row
    ended: float = 0.0  # when its last process ended
    left: bool = False  # its last process ended without an error
    worked: bool = False  # one of its processes ended for another reason, or the run progressed while it ran
    unstarted: str = ""  # its last error, if it ended because a component that it needs did not start
    not_started: str = ""  # why the last attempt to start a process failed
    dismissed: bool = False  # it is not wanted any more
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def reason(self, status: int) -> str:
        """How its last process ended, in words that follow its name."""
        if self.not_started:
            return f"could not be started ({self.not_started})"
        return f"ended ({exit_reason(status)}{f': {self.last_words()}' if status > 0 else ''})"

    def last_words(self) -> str:
        """Why its last process ended, as far as it could write that down."""
        if self.not_started or (full := self.full_disk()):
            return self.not_started or full
        assert self.running is not None, "a process was started"
        return self.running.last_words() or "no output"

    def full_disk(self) -> str:
        """Why a process could neither continue nor say so; empty: there is room, or the folder is gone."""
        folder = self.output.parent
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < FULL_BYTES:
                return f"the disk under {folder} is full: make room"
        return ""

    async def end(self, starter: Starter) -> int:
        """One process from start to end; returns its exit status, or `NOT_STARTED`. Raises `PlaceLost`."""
        self.started, self.not_started, self.running = time.monotonic(), "", None
        try:
            self.running = await starter.start(self.command, self.output)
        except OSError as error:  # no memory, no descriptor, no folder
            self.not_started = str(error)
            return NOT_STARTED
        self.started, self.left = time.monotonic(), False
        return await self.running.ended()


class Supervisor:
    """`async with Supervisor(…) as s: await s.failed.wait()`; `report` receives one line per event, for people."""

    def __init__(
        self,
        commands: Sequence[Command],
        logs: Callable[[str], Path],
        report: Callable[[str], None],
        starter: Starter | None = None,
    ) -> None:
        """`starter`: where processes run; None: on this machine."""
        self.children = [Child(command, logs(command.name).with_suffix(".out")) for command in commands]
        self._logs, self._starter = logs, starter or LocalStarter()
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
            self._keep(child)
        return self

    async def __aexit__(self, *ended: object) -> None:
        self._closing = True
        for stage in _stages(self.children):
            await _stop(stage)

    def add(self, command: Command) -> None:
        """One more process, from now on."""
        child = Child(command, self._logs(command.name).with_suffix(".out"))
        self.children.append(child)
        self._keep(child)

    async def dismiss(self, names: Collection[str]) -> None:
        """End these processes, which hand back what they hold, and start them no more."""
        leaving = [child for child in self.children if child.command.name in names]
        for child in leaving:
            child.dismissed = True
        await _stop(leaving)
        self.children = [child for child in self.children if child not in leaving]

    def fail(self, error: BaseException) -> None:
        """End the run with this error, unless another has ended it."""
        if self.failed.is_set():
            return
        self.hopeless = isinstance(error, HOPELESS)
        self.failure = f"{type(error).__name__}: {error}"
        self.failed.set()

    @property
    def lost(self) -> bool:
        """Files of the run are gone: perhaps not all samples are kept."""
        return FilesLost.__name__ in self.failure

    def left(self, name: str) -> bool:
        """The process ended without an error and has not been restarted."""
        return any(child.left for child in self.children if child.command.name == name)

    def _keep(self, child: Child) -> None:
        child.task = watched(self._keep_alive(child), partial(self._lost, child))

    async def _keep_alive(self, child: Child) -> None:
        """Until we close, it is dismissed, the broker has ended, or the command has failed too often."""
        while not (self._closing or child.dismissed):
            try:
                status = await child.end(self._starter)
            except PlaceLost as lost:
                await self._move(child, lost)
                continue
            child.left = status == 0
            if self._closing or child.dismissed or (child.left and child.command.name == "broker"):
                return
            self._count_failure(child)
            child.worked |= status != EX_UNSTARTED or self._progressed_at > child.started
            hopeless = status == EX_HOPELESS or (status != 0 and not await self._room(child))
            if self._closing or child.dismissed:
                return
            words, child.unstarted = child.unstarted, child.last_words() if status == EX_UNSTARTED else ""
            never = bool(words) and words == child.unstarted and not child.worked
            if hopeless or child.restarts == MAX_RESTARTS or never:
                self._give_up(child, hopeless)
                return
            pause_s = restart_pause_s(child.quick_failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            child.restarts += 1
            if child.left:
                await asyncio.sleep(LEFT_S)
                if not self._closing:
                    self._report(f"{child.command.name} had left; starting it again")
            else:
                self._report(f"{child.command.name} {child.reason(status)}; starting it again in {pause_s:g} s")
                await asyncio.sleep(pause_s)

    async def _room(self, child: Child) -> bool:
        """Whether the disk has room for what a process writes; waits for it."""
        if full := child.full_disk():
            self._report(f"waits: {child.command.name} ended, and {full}; it starts again then, or the run ends")
        left_s = FULL_S
        while (is_full := bool(child.full_disk())) and left_s > 0:
            left_s -= ROOM_S
            await asyncio.sleep(ROOM_S)
        return not is_full

    async def _move(self, child: Child, lost: PlaceLost) -> None:
        """Its place is lost, which is no failure of the process: it starts in another one."""
        child.quick_losses = child.quick_losses + 1 if time.monotonic() - child.started < QUICK_S else 1
        if not (self._closing or child.dismissed):
            self._report(f"{child.command.name}: {lost}; starting it in another place")
            await asyncio.sleep(restart_pause_s(child.quick_losses, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    def _count_failure(self, child: Child) -> None:
        """Earlier failures do not count if the run has progressed since the last one. Repeating steps after a
        rollback is progress for workers, but not for a process whose death rolls back."""
        now = time.monotonic()
        child.quick_failures = child.quick_failures + 1 if now - child.started < QUICK_S else 0
        worker = child.command.name.partition("-")[0] in WORKERS
        if (self._progressed_at if worker else self._advanced_at) > child.ended:
            child.restarts = 0
        child.ended = now

    def _lost(self, child: Child, error: BaseException) -> None:
        """Of our own loop, which must not end without a word: its process would not be restarted any more."""
        log.error("%s is not kept alive any more", child.command.name, exc_info=error)
        self.failure = f"{child.command.name} is not restarted any more: {type(error).__name__}: {error}"
        self.failed.set()

    def _give_up(self, child: Child, hopeless: bool) -> None:
        self.hopeless = hopeless
        times = f"{child.restarts + 1} times" if child.restarts else "once and for all"
        self.failure = f"{child.command.name} ended {times}: {child.last_words()}\nsee {child.output}"
        self.failed.set()


def _stages(children: Sequence[Child]) -> list[list[Child]]:
    """Groups that are stopped one after another: workers return what they hold to the broker and the store."""
    last = ("broker", "store")
    role = {child.command.name: child.command.name.partition("-")[0] for child in children}
    stages = [[child for child in children if role[child.command.name] not in last]]
    stages += [[child for child in children if role[child.command.name] == name] for name in last]
    return [stage for stage in stages if stage]


async def _stop(children: Sequence[Child]) -> None:
    tasks = [child.task for child in children if child.task is not None]
    if not tasks:
        return
    for child in children:
        if child.running is not None and child.running.alive:
            child.running.terminate()
        elif child.task is not None:
            child.task.cancel()  # it only waits: to restart the process, or for a place
    await asyncio.wait(tasks, timeout=STOP_S)
    for child in children:
        if child.running is not None:
            child.running.kill()  # also an engine's children that outlived their parent
    for stuck in (await asyncio.wait(tasks, timeout=STOP_S))[1]:
        stuck.cancel()
