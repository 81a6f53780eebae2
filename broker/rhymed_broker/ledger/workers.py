"""Who is here and what they hold. Owns workers, their free slots, and how busy the slots have been.

Invariant: a sample is in exactly one worker's `held` while it is running or scoring, else in none; `free[role]` has
exactly the workers of that role with a free slot that neither rest nor are drained. Knows nothing of steps, versions
or queues.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.messages import Holding, Join, SampleId, SampleInfo
from rhymed_broker.ledger.meter import Occupancy
from rhymed_broker.states import Sample


class Worker:
    """A rollout or reward worker, or the trainer (which holds nothing here)."""

    __slots__ = (
        "accepted", "busy", "claims", "drained", "forwards", "held", "holding", "host", "missing", "name", "parked",
        "phase", "phase_at", "pid", "resting", "rests_until", "role", "seen", "slots", "stats", "target", "told_at",
        "useful", "version",
    )  # fmt: skip

    def __init__(self, join: Join, now: float) -> None:
        self.name = join.worker
        self.role = join.role
        self.host = join.host
        self.pid = join.pid
        self.slots = join.slots
        self.version = join.version
        self.target = -1  # version that it was told to load; -1: none
        self.told_at = 0.0
        self.seen = now
        self.phase = ""
        self.phase_at = now  # since when it has said so
        self.stats: dict[str, float] = {}
        self.holding: list[Holding] = []  # as it told last
        self.held: dict[SampleId, Sample] = {}  # as the ledger knows
        self.parked: set[SampleId] = (
            set()
        )  # held, written ahead to the end: they wait for newer weights, without a slot
        self.busy = 0  # slots in use; what was parked and is not any more may wait for one
        self.missing: dict[SampleId, float] = {}  # held, but not told: since when
        self.claims: list[SampleId] = join.holding  # works on these since before we knew it
        self.resting = False  # failed lately: gets nothing until the next tick, or longer
        self.rests_until = 0.0
        self.useful = False  # a sample has come further in its hands
        self.drained = False  # a person said so: it gets nothing more, see `steering`
        self.forwards = self.accepted = 0.0  # steps and accepted drafts of its samples, the older ones fading

    def made(self, info: SampleInfo) -> None:
        """It has written a sample to its end."""
        self.useful = True
        if told := info.drafting:
            self.forwards = FADE * self.forwards + told.forwards
            self.accepted = FADE * self.accepted + told.accepted

    @property
    def accept_length(self) -> float:
        """Tokens a forward of its last samples; 0: not known."""
        return 1 + self.accepted / self.forwards if self.forwards else 0.0


LONGEST_REST_S = 300.0
FADE = 0.9  # a sample: about the last ten count


class Workers:
    def __init__(self) -> None:
        self.by_name: dict[str, Worker] = {}
        self.trainer: Worker | None = None
        self.free: dict[str, dict[str, Worker]] = {"rollout": {}, "reward": {}, "trainer": {}}
        self.changed: dict[
            str, Worker
        ] = {}  # whose free slots, weights or parked samples are others since `take_changed`
        self.lineup = 0  # times that a rollout worker came or went
        self.occupancy = Occupancy()  # of rollout slots
        self.deaths: dict[str, int] = {}  # worker -> times in a row that it died with work, and had been of no use

    def add(self, worker: Worker, now: float) -> None:
        self.by_name[worker.name] = worker
        self.lineup += worker.role == "rollout"
        if worker.role == "trainer":
            self.trainer = worker
        elif worker.role == "rollout":
            self.occupancy.change(now, slots=worker.slots)
        self.refresh(worker)

    def welcome(self, worker: Worker, now: float, *, useless: bool) -> None:
        """One that has died again and again before it was of any use gets nothing for a while, each time for longer.

        `useless`: so it was just now. What it would get it would hold up, and make suspect.
        """
        deaths = self.deaths[worker.name] = self.deaths.get(worker.name, 0) + 1 if useless else 0
        if deaths > 1:
            worker.rests_until = now + min(LONGEST_REST_S, 2.0 ** (deaths - 1))
            self.rest(worker, True)

    def remove(self, worker: Worker, now: float) -> None:
        """The caller has released what it held."""
        assert not worker.held, f"{worker.name} leaves with samples in hand"
        del self.by_name[worker.name]
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
        """Out of the hands of who holds it, if anybody does."""
        worker = self.by_name.get(sample.worker)
        sample.worker = ""
        if worker is not None and worker.held.pop(sample.id, None) is not None:
            worker.missing.pop(sample.id, None)
            worker.parked.discard(sample.id)
            self._changed(worker, now)

    def park(self, worker: Worker, parked: set[SampleId], now: float) -> None:
        """These alone, of what it holds, wait without a slot."""
        parked = parked & worker.held.keys()
        if parked != worker.parked:
            worker.parked = parked
            self._changed(worker, now)

    def rest(self, worker: Worker, resting: bool) -> None:
        worker.resting = resting
        self.refresh(worker)

    def refresh(self, worker: Worker) -> None:
        if worker.resting or worker.drained or len(worker.held) - len(worker.parked) >= worker.slots:
            self.free[worker.role].pop(worker.name, None)
            self.changed.pop(worker.name, None)
        else:
            self.free[worker.role][worker.name] = self.changed[worker.name] = worker

    def drain(self, worker: Worker, drained: bool) -> None:
        """A policy that deals has to deal anew."""
        worker.drained = drained
        self.lineup += worker.role == "rollout"
        self.refresh(worker)

    def take_changed(self) -> list[Worker]:
        """Those with a free slot to whom something has happened since the last call."""
        changed, self.changed = list(self.changed.values()), {}
        return changed

    def _changed(self, worker: Worker, now: float) -> None:
        busy = min(worker.slots, len(worker.held) - len(worker.parked))
        if worker.role == "rollout":
            self.occupancy.change(now, busy=busy - worker.busy)
        worker.busy = busy
        self.refresh(worker)
