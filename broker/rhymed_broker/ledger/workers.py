"""Who is here and what they hold. Owns the workers, their free slots, and the slots' occupancy.

Invariant: a sample is in one worker's `held` while it is running, acting or scoring, and in none otherwise;
`free[role]` has the workers of that role with a free slot that are awake, do not rest and are not drained. Knows
nothing of steps, versions or queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rhymed.core.messages import Heartbeat, Join, Role, SampleId, SampleInfo
from rhymed_broker.ledger.engine import WRITES, Engine
from rhymed_broker.ledger.meter import Occupancy
from rhymed_broker.states import Sample


class Rest(NamedTuple):
    """It failed lately: it gets no samples until the first tick after `until`."""

    until: float = 0.0
    why: str = ""


class Worker:
    """A rollout, environment or reward worker, or the trainer (which holds nothing here)."""

    def __init__(self, join: Join, now: float) -> None:
        self.name = join.worker
        self.role = join.role
        self.slots = join.slots
        self.version = join.version
        self.join = join  # how it introduced itself
        self.engine = Engine(asleep=join.asleep)  # a rollout worker's
        self.seen = now
        self.report = Heartbeat(worker=join.worker)  # its last one
        self.phase_at = now  # when it entered the phase that it reported last
        self.held: dict[SampleId, Sample] = {}  # by the ledger
        # Held, written ahead to the end: without a slot, until newer weights are loaded.
        self.parked = set[SampleId]()
        self.beat = (now, -2, 0)  # of its last heartbeat: time, version, samples that had a slot
        self.busy = 0  # slots in use; a sample that is no longer parked may wait for one
        self.missing: dict[SampleId, float] = {}  # held, but not reported: since when
        self.claims: list[SampleId] = join.holding  # held when it joined, to be adopted
        self.opened: list[SampleId] = join.open  # open when it joined, to be asked for
        self.rest: Rest | None = None
        self.useful = False  # a sample has made progress here
        self.drained = False  # by an operator: gets no samples, see `Control`
        self.forwards = self.accepted = 0.0  # forwards and accepted drafts of its samples, exponentially weighted

    def heard(self, report: Heartbeat, now: float) -> None:
        if report.phase != self.report.phase:
            self.phase_at = now
        self.seen, self.report = now, report

    def finished(self, info: SampleInfo) -> None:
        self.useful = True
        if drafting := info.drafting:
            self.forwards = FADE * self.forwards + drafting.forwards
            self.accepted = FADE * self.accepted + drafting.accepted

    @property
    def accept_length(self) -> float:
        """Tokens per forward, of its latest samples; 0: not known."""
        return 1 + self.accepted / self.forwards if self.forwards else 0.0


LONGEST_REST_S = 300.0
MOST_NAMES = 10_000  # of workers that are remembered for a fault: whoever has a key can have many names
FADE = 0.9  # weight per sample: about the last ten count


class Hosts:
    """Which environment worker has the environment, or the program, of which sample: at most one has."""

    def __init__(self) -> None:
        self._hosts: dict[SampleId, str] = {}
        self._open: dict[str, dict[SampleId, None]] = {}

    def of(self, id: SampleId) -> str:
        """Empty: none."""
        return self._hosts.get(id, "")

    def at(self, name: str) -> Iterable[SampleId]:
        """The samples that this worker has open, in the order in which they came."""
        return self._open.get(name, {})

    def count(self, name: str) -> int:
        return len(self._open.get(name, ()))

    def put(self, id: SampleId, name: str) -> None:
        self.remove(id)
        self._hosts[id] = name
        self._open.setdefault(name, {})[id] = None

    def remove(self, id: SampleId) -> str:
        """Returns the worker that had it; empty: none had."""
        name = self._hosts.pop(id, "")
        if name:
            del self._open[name][id]
        return name

    def forget(self, name: str) -> list[SampleId]:
        """The worker is gone, or what it has is to be asked again. Returns what it had."""
        had = list(self._open.pop(name, ()))
        for id in had:
            del self._hosts[id]
        return had


class Workers:
    def __init__(self) -> None:
        self.by_name: dict[str, Worker] = {}
        self.trainer: Worker | None = None
        self.free: dict[str, dict[str, Worker]] = {"rollout": {}, "environment": {}, "reward": {}, "trainer": {}}
        self.changed: dict[str, Worker] = {}  # slots, weights or parked samples changed since `take_changed`
        self.lineup = 0  # increases when a rollout worker comes, goes, or is drained
        self.hosts = Hosts()  # who has the environments of samples
        self.occupancy = Occupancy()  # of rollout slots
        self.joined: set[Role] = set()  # roles of which a worker was ever here
        self.false_reports: dict[str, int] = {}  # worker -> times that the store lacked what it had reported
        self.deaths: dict[str, int] = {}  # worker -> times in a row that it died with samples and without progress

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.by_name.values())

    def of_role(self, role: Role) -> list[Worker]:
        return [worker for worker in self if worker.role == role]

    def silent(self, now: float, limit_s: float) -> list[Worker]:
        """Not heard for longer than the limit."""
        return [worker for worker in self if now - worker.seen > limit_s]

    def excuse(self, seconds: float, now: float) -> None:
        """The broker did not run for so long: that is no silence of theirs."""
        for worker in self:
            worker.seen = min(now, worker.seen + seconds)

    def add(self, worker: Worker, now: float) -> None:
        self.by_name[worker.name] = worker
        self.joined.add(worker.role)
        self.lineup += worker.role == "rollout"
        if worker.role == "trainer":
            self.trainer = worker
        elif worker.role == "rollout":
            self.occupancy.change(now, slots=worker.slots)
        self.refresh(worker)

    def welcome(self, worker: Worker, now: float, *, useless: bool) -> None:
        """A worker that dies repeatedly without progress gets no samples for a while, each time for longer.

        `useless`: it just died with samples and without progress. New samples would only be delayed and blamed.
        """
        if not useless:
            self.deaths.pop(worker.name, None)
        elif (deaths := _count(self.deaths, worker.name)) > 1:
            self._rest_for(worker, deaths, f"died {deaths} times in a row and did nothing", now)

    def distrust(self, worker: Worker, now: float) -> None:
        """It reported a sample that the store lacks. Many in one rest count once: the store may have lost them."""
        if worker.rest is not None and now < worker.rest.until:
            return
        times = _count(self.false_reports, worker.name)
        self._rest_for(worker, times, f"reported samples that the store lacks, {times} times", now)

    def _rest_for(self, worker: Worker, times: int, why: str, now: float) -> None:
        """Longer each time."""
        self.rest(worker, Rest(now + min(LONGEST_REST_S, 2.0 ** min(times - 1, 20)), why))

    def remove(self, worker: Worker, now: float) -> None:
        """The caller has released the samples that it held."""
        assert not worker.held, f"{worker.name} is removed while it holds samples"
        del self.by_name[worker.name]
        self.hosts.forget(worker.name)
        self.changed.pop(worker.name, None)
        self.lineup += worker.role == "rollout"
        self.free[worker.role].pop(worker.name, None)
        if self.trainer is worker:
            self.trainer = None
        elif worker.role == "rollout":
            self.occupancy.change(now, slots=-worker.slots)

    def hold(self, worker: Worker, samples: Iterable[Sample], now: float) -> None:
        for sample in samples:
            assert not sample.worker, f"{sample.id} is with {sample.worker} already"
            sample.worker = worker.name
            worker.held[sample.id] = sample
        self._changed(worker, now)

    def release(self, sample: Sample, now: float) -> None:
        """From the worker that holds it, if one does."""
        worker = self.by_name.get(sample.worker)
        sample.worker = ""
        if worker is not None and worker.held.pop(sample.id, None) is not None:
            worker.missing.pop(sample.id, None)
            worker.parked.discard(sample.id)
            self._changed(worker, now)

    def park(self, worker: Worker, parked: set[SampleId], now: float) -> None:
        """Exactly these of its samples wait without a slot."""
        parked = parked & worker.held.keys()
        if parked != worker.parked:
            worker.parked = parked
            self._changed(worker, now)

    def rests_s(self, name: str, now: float) -> float:
        """For how long it gets no samples."""
        rest = self.by_name[name].rest
        return max(0.0, rest.until - now) if rest is not None else 0.0

    def rest(self, worker: Worker, rest: Rest | None) -> None:
        worker.rest = rest
        self.refresh(worker)

    def end_rests(self, now: float) -> None:
        for worker in self:
            if worker.rest is not None and now >= worker.rest.until:
                self.rest(worker, None)

    def refresh(self, worker: Worker) -> None:
        if (
            worker.rest is not None
            or worker.drained
            or worker.engine.state not in WRITES
            or len(worker.held) - len(worker.parked) >= worker.slots
        ):
            self.free[worker.role].pop(worker.name, None)
            self.changed.pop(worker.name, None)
        else:
            self.free[worker.role][worker.name] = self.changed[worker.name] = worker

    def drain(self, worker: Worker, drained: bool) -> None:
        worker.drained = drained
        self.lineup += worker.role == "rollout"
        self.refresh(worker)

    def take_changed(self) -> list[Worker]:
        """Workers with a free slot that have changed since the last call."""
        changed, self.changed = list(self.changed.values()), {}
        return changed

    def _changed(self, worker: Worker, now: float) -> None:
        busy = min(worker.slots, len(worker.held) - len(worker.parked))
        if worker.role == "rollout":
            self.occupancy.change(now, busy=busy - worker.busy)
        worker.busy = busy
        self.refresh(worker)


def _count(times: dict[str, int], name: str) -> int:
    """One more for this name. Names that were counted longest ago make room."""
    count = times[name] = times.pop(name, 0) + 1
    while len(times) > MOST_NAMES:
        del times[next(iter(times))]
    return count
