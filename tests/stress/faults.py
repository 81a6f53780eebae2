"""Blows that fall on a living run, by a seed: who is hit, when and how, and what came of it.

Owns the run while the storm lasts: starts it again after a power loss, resumes it should its supervisor give up, and
sees it to its end. Knows nothing of what the run should have trained: that is for the audit.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.stress.loss import Loss, held, lost
from tests.stress.recovery import Pace
from tests.stress.run import ROLES, Living, Part, Watch, send

KINDS = (*ROLES, "stop", "term", "all")
USUAL = tuple(kind for kind in KINDS if kind != "engine")  # the trace engine has no process of its own
STOPPED_S = (0.5, 6.0)  # how long a process hangs
VICTIM_S = 20.0  # a process of the kind is there again by then
READ_S = 0.1  # what was on its way to the store has arrived
MAX_RESUMES = 3  # after the supervisor gave up: that is a fault, but the rest is still worth a look
STUCK_S = 180.0  # without a new sample, while nothing is killed


@dataclass
class Blow:
    """What was done to whom, and what came of it."""

    kind: str
    at: float  # time.monotonic
    name: str = ""  # of the process
    recovered_s: float | None = None  # until the run was as fast as ever; None: the next blow came before
    losses: list[Loss] = field(default_factory=list)  # of samples that it had in hand


@dataclass
class Outcome:
    blows: list[Blow] = field(default_factory=list)
    seconds: float = 0.0
    gave_up: list[str] = field(default_factory=list)  # what the supervisor said when it did
    forgotten: int = 0  # samples that were in the store and then were not


class Blows:
    """Which kinds fall when. A pure function of the seed: who is hit depends on who is alive."""

    def __init__(self, seed: int, count: int, every_s: float, kinds: Sequence[str]) -> None:
        self.count, self._every_s, self._kinds = count, every_s, tuple(kinds)
        self.draw = random.Random(seed)
        self._bag: list[str] = []

    def kind(self) -> str:
        """Each kind comes before any comes again."""
        if not self._bag:
            self._bag = self.draw.sample(self._kinds, len(self._kinds))
        return self._bag.pop()

    def pause_s(self) -> float:
        return self.draw.uniform(0.3, 1.7) * self._every_s

    def victim(self, kind: str, parts: Sequence[Part]) -> Part | None:
        fitting = {"stop": [role for role in ROLES if role != "scorer"], "term": ["rollout", "reward"]}
        able = sorted(part for part in parts if part.role in fitting.get(kind, [kind]))
        return self.draw.choice(sorted(able, key=lambda part: part.name)) if able else None


class Storm:
    """`outcome = await Storm(run, blows, pace).run()`: until the run has finished."""

    def __init__(self, run: Living, blows: Blows, pace: Pace) -> None:
        self._run, self._blows, self._pace = run, blows, pace
        self._watch = Watch(run)
        self._outcome = Outcome()
        self._frozen: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        started = time.monotonic()
        looking = asyncio.create_task(self._watch.run())
        try:
            await self._fire()
            await self._end()
        finally:
            for task in (looking, *self._frozen):
                task.cancel()
            await asyncio.gather(looking, *self._frozen, return_exceptions=True)
        self._outcome.seconds = time.monotonic() - started
        self._outcome.forgotten = self._watch.lost
        self._recoveries()
        return self._outcome

    async def _fire(self) -> None:
        while len(self._outcome.blows) < self._blows.count:
            until = time.monotonic() + self._blows.pause_s()
            while time.monotonic() < until:
                if not await self._goes_on():
                    return
                await asyncio.sleep(0.05)
            await self._strike(self._blows.kind())

    async def _goes_on(self) -> bool:
        """False: the run is over. One that the supervisor gave up is resumed."""
        if self._run.status is None:
            return True
        if self._run.status == 0 or len(self._outcome.gave_up) >= MAX_RESUMES:
            return False
        self._outcome.gave_up.append(self._run.tail())
        print(f"the supervisor gave up:\n{self._run.tail()}", flush=True)
        self._run.start(resume=True)
        return True

    async def _end(self) -> None:
        """Nothing more falls: the run comes to its end, or is stuck."""
        seen, since = self._watch.stored, time.monotonic()
        while await self._goes_on():
            if self._watch.stored != seen:
                seen, since = self._watch.stored, time.monotonic()
            if time.monotonic() - since > STUCK_S:
                self._outcome.gave_up.append(f"no new sample for {STUCK_S:.0f} s, and nothing was killed")
                return
            await asyncio.sleep(0.2)

    async def _strike(self, kind: str) -> None:
        if kind == "all":
            await self._power_loss()
            return
        victim = await self._victim(kind)
        if victim is None:
            return
        number = {"stop": signal.SIGSTOP, "term": signal.SIGTERM}.get(kind, signal.SIGKILL)
        before = held(self._watch, self._run.config, {victim.pid}) if kind == "rollout" else []
        blow = Blow(f"{kind} {victim.role}" if kind in ("stop", "term") else kind, time.monotonic(), victim.name)
        if not send(victim.pid, number):
            return
        self._outcome.blows.append(blow)
        self._tell(blow, victim.pid)
        if kind == "stop":
            task = asyncio.create_task(self._thaw(victim.pid, self._blows.draw.uniform(*STOPPED_S)))
            self._frozen.add(task)
            task.add_done_callback(self._frozen.discard)
        if before:
            await asyncio.sleep(READ_S)
            blow.losses = lost(self._run, before)

    async def _power_loss(self) -> None:
        before = held(self._watch, self._run.config, {part.pid for part in self._run.parts()})
        blow = Blow("all", time.monotonic())
        self._run.lose_power()
        self._outcome.blows.append(blow)
        self._tell(blow, self._run.pid)
        blow.losses = lost(self._run, before)
        self._run.start(resume=True)

    async def _victim(self, kind: str) -> Part | None:
        """Whoever is alive of that kind, or will be soon. None: the run is over."""
        until = time.monotonic() + VICTIM_S
        while time.monotonic() < until and await self._goes_on():
            if victim := self._blows.victim(kind, self._run.parts()):
                return victim
            await asyncio.sleep(0.1)
        return None

    async def _thaw(self, pid: int, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
        finally:
            send(pid, signal.SIGCONT)

    def _tell(self, blow: Blow, pid: int) -> None:
        step = self._watch.queues.step if self._watch.queues else 0
        print(f"{len(self._outcome.blows):4} step {step:4}  {blow.kind} {blow.name} ({pid})", flush=True)

    def _recoveries(self) -> None:
        blows = self._outcome.blows
        for blow, following in zip(blows, [*(one.at for one in blows[1:]), float("inf")], strict=True):
            blow.recovered_s = self._pace.recovery_s(self._watch.points, blow.at, following)
