"""Injects a seeded series of faults into a live run, and records their effect.

Owns the run meanwhile: starts it again after all processes were killed, resumes it if its supervisor gives up, and
waits for its end. Does not know what the run should have trained: the audit does.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.stress.loss import Loss, held, lost
from tests.stress.recovery import Throughput
from tests.stress.run import ROLES, LiveRun, Part, Watch, send

KINDS = (*ROLES, "stop", "term", "all")
AGENTS = tuple(kind for kind in KINDS if kind != "engine")  # the trace engine has no process of its own
USUAL = tuple(kind for kind in AGENTS if kind not in ("environment", "tool"))
IN_JAIL = ("scorer", "tool")
STOPPED_S = (0.5, 6.0)  # how long a process is stopped
VICTIM_S = 20.0  # by then a process of the kind runs again
READ_S = 0.1  # messages on their way to the store have arrived
MAX_RESUMES = 3  # after the supervisor gave up, which is an error, but the rest is still tested
FEW = 20  # faults
STUCK_S = 180.0  # without a new sample or a fault


@dataclass
class Fault:
    """One fault and its effect."""

    kind: str
    at: float  # time.monotonic
    name: str = ""  # of the process
    recovered_s: float | None = None  # until full speed; None: the next fault came before
    losses: list[Loss] = field(default_factory=list)  # of samples that it was generating


@dataclass
class Outcome:
    faults: list[Fault] = field(default_factory=list)
    seconds: float = 0.0
    gave_up: list[str] = field(default_factory=list)  # the supervisor's last lines
    forgotten: int = 0  # samples that disappeared from the store


class FaultSchedule:
    """Kinds and times of the faults, a pure function of the seed. The victim depends on which processes live."""

    def __init__(self, seed: int, count: int, every_s: float, kinds: Sequence[str]) -> None:
        self.count, self._every_s, self._kinds = count, every_s, tuple(kinds)
        self.draw = random.Random(seed)
        self._bag: list[str] = []

    def kind(self) -> str:
        """All kinds occur once before any occurs again."""
        if not self._bag:
            self._bag = self.draw.sample(self._kinds, len(self._kinds))
        return self._bag.pop()

    def pause_s(self) -> float:
        return self.draw.uniform(0.3, 1.7) * self._every_s

    def victim(self, kind: str, parts: Sequence[Part]) -> Part | None:
        fitting = {
            "stop": [role for role in ROLES if role not in IN_JAIL],
            "term": ["rollout", "environment", "reward"],
        }
        able = sorted(part for part in parts if part.role in fitting.get(kind, [kind]))
        return self.draw.choice(sorted(able, key=lambda part: part.name)) if able else None


class FaultInjector:
    """`outcome = await FaultInjector(run, faults, throughput).run()`: until the run has finished."""

    measures = True  # the tokens that running samples lose

    def __init__(self, run: LiveRun, faults: FaultSchedule, throughput: Throughput) -> None:
        self._run, self._schedule, self._throughput = run, faults, throughput
        self._watch = Watch(run)
        # A few faults come on a machine of any speed: no later than after their share of a calm run's samples.
        few = throughput.samples > 0 and faults.count <= FEW
        self._share = throughput.samples / (faults.count + 1) if few else math.inf
        self._outcome = Outcome()
        self._stopped: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        started = time.monotonic()
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._inject_all()
            await self._end()
        finally:
            for task in (watching, *self._stopped):
                task.cancel()
            await asyncio.gather(watching, *self._stopped, return_exceptions=True)
        self._outcome.seconds = time.monotonic() - started
        self._outcome.forgotten = self._watch.lost
        self._recoveries()
        return self._outcome

    async def _inject_all(self) -> None:
        while not (self._run.where.folder / "config.json").exists():  # before that there is nothing to resume
            if not await self._is_running():
                return
            await asyncio.sleep(0.05)
        while len(self._outcome.faults) < self._schedule.count:
            until, written = time.monotonic() + self._schedule.pause_s(), self._watch.stored
            while time.monotonic() < until and self._watch.stored - written < self._share:
                if not await self._is_running():
                    return
                await asyncio.sleep(0.05)
            await self._inject(self._schedule.kind())

    async def _is_running(self) -> bool:
        """False: the run has ended. Resumes a run that its supervisor gave up."""
        if self._run.status is None:
            return True
        if self._run.status == 0 or len(self._outcome.gave_up) >= MAX_RESUMES:
            return False
        self._outcome.gave_up.append(self._run.tail())
        print(f"the supervisor gave up:\n{self._run.tail()}", flush=True)
        self._run.start(resume=True)
        return True

    async def _end(self) -> None:
        """Waits without more faults until the run has ended, or is stuck."""
        seen, since = self._watch.stored, time.monotonic()
        while await self._is_running():
            if self._watch.stored != seen:
                seen, since = self._watch.stored, time.monotonic()
            if time.monotonic() - since > STUCK_S:
                self._outcome.gave_up.append(f"no new sample for {STUCK_S:.0f} s, and nothing was killed")
                return
            await asyncio.sleep(0.2)

    async def _inject(self, kind: str) -> None:
        if kind == "all":
            await self._kill_all()
            return
        victim = await self._victim(kind)
        if victim is None:
            return
        number = {"stop": signal.SIGSTOP, "term": signal.SIGTERM}.get(kind, signal.SIGKILL)
        before = held(self._watch, self._run.config, {victim.pid}) if self.measures and kind == "rollout" else []
        fault = Fault(f"{kind} {victim.role}" if kind in ("stop", "term") else kind, time.monotonic(), victim.name)
        if not send(victim.pid, number):
            return
        self._outcome.faults.append(fault)
        self._print_fault(fault, victim.pid)
        if kind == "stop":
            task = asyncio.create_task(self._resume_later(victim.pid, self._schedule.draw.uniform(*STOPPED_S)))
            self._stopped.add(task)
            task.add_done_callback(self._stopped.discard)
        if before:
            await asyncio.sleep(READ_S)
            fault.losses = lost(self._run, before)

    async def _kill_all(self) -> None:
        every = {part.pid for part in self._run.parts()}
        before = held(self._watch, self._run.config, every) if self.measures else []
        fault = Fault("all", time.monotonic())
        self._run.kill_all()
        self._outcome.faults.append(fault)
        self._print_fault(fault, self._run.pid)
        fault.losses = lost(self._run, before) if before else []
        self._run.start(resume=True)

    async def _victim(self, kind: str) -> Part | None:
        """A live process of that kind, once there is one. None: the run has ended."""
        until = time.monotonic() + VICTIM_S
        while time.monotonic() < until and await self._is_running():
            if victim := self._schedule.victim(kind, self._run.parts()):
                return victim
            await asyncio.sleep(0.1)
        return None

    async def _resume_later(self, pid: int, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
        finally:
            send(pid, signal.SIGCONT)

    def _print_fault(self, fault: Fault, pid: int) -> None:
        step = self._watch.queues.step if self._watch.queues else 0
        print(f"{len(self._outcome.faults):4} step {step:4}  {fault.kind} {fault.name} ({pid})", flush=True)

    def _recoveries(self) -> None:
        faults = self._outcome.faults
        for fault, following in zip(faults, [*(later.at for later in faults[1:]), float("inf")], strict=True):
            fault.recovered_s = self._throughput.recovery_s(self._watch.points, fault.at, following)
