"""What policies see and say.

They see live views of the ledger's own open_steps (building a snapshot costs nothing) and must not change them. A sample
may be placed on a worker that has room and whose version lies between the queue's earliest and newest; what is left
out stays waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rhymed.messages import Role, SampleId
from rhymed_broker.states import Sample

Deal = Mapping[str, Sequence[str]]  # worker -> prompts, in the order in which it begins them
Expect = Callable[[str], float]  # prompt -> expected response tokens of one of its samples


class WorkerView(Protocol):
    """A worker, as policies see it; none has newer weights than the run."""

    name: str
    role: Role
    slots: int
    version: int  # policy version loaded; -1: none

    @property
    def held(self) -> Mapping[SampleId, Sample]:
        """Samples in hand."""

    @property
    def parked(self) -> Collection[SampleId]:
        """Those of them that are written ahead to their ends and wait, without a slot, for newer weights."""


class StepQueue(NamedTuple):
    """One step's samples that want a worker."""

    step: int
    earliest_version: int  # weights that may begin them; below `oldest_version` they are written ahead:
    oldest_version: int  # then what was written is verified when weights of this version are there
    newest_version: int
    groups: Mapping[str, Mapping[Sample, None]]  # prompt -> its samples, in the order of `rank`; none is empty
    size: int  # samples
    deal: Deal | None = None  # of the step, where the policy deals
    expected: Mapping[str, float] = {}  # prompt -> response tokens, when `groups` were ranked
    unprobed: Collection[str] = ()  # prompts of which nothing is known, neither history nor samples that are begun

    def ahead_of(self, worker: WorkerView) -> bool:
        """Would this worker write them ahead?"""
        return worker.version < self.oldest_version

    def fits(self, worker: WorkerView) -> bool:
        """May this worker have them? One with as many parked as it has slots writes nothing more ahead."""
        if worker.role == "reward":
            return True
        if not self.earliest_version <= worker.version <= self.newest_version:
            return False
        return not self.ahead_of(worker) or len(worker.parked) < worker.slots

    def without(self, some: Collection[Sample]) -> StepQueue:
        """All but these."""
        groups = {
            prompt: kept
            for prompt, group in self.groups.items()
            if (kept := {sample: None for sample in group if sample not in some})
        }
        return self._replace(groups=groups, size=sum(map(len, groups.values())))


class Snapshot(NamedTuple):
    """What a placement is decided on."""

    queues: Sequence[StepQueue]  # evaluations, then steps, oldest first
    workers: Sequence[WorkerView]  # with at least one free slot


class Placement(NamedTuple):
    worker: str
    samples: list[Sample]


class Move(NamedTuple):
    """A running sample that another worker shall go on with."""

    sample: Sample
    target: str


class Running(NamedTuple):
    """What moves are decided on, now and then."""

    samples: Sequence[Sample]  # of the oldest step that is not generated, none of which waits any more
    size: int  # samples of that step
    workers: Mapping[str, WorkerView]  # all rollout workers that may go on with them
    left: Callable[[Sample], float]  # tokens that it will still need
    total: Callable[[Sample], float]  # tokens that were expected of it when its step was opened


class Policy(NamedTuple):
    rank: Callable[[int, Sequence[str], Expect], list[str]]
    """Inter-step: the order in which a step's prompts are begun. Gets the step's number."""
    deal: Callable[[Sequence[str], Sequence[WorkerView], Expect], Deal] | None
    """Intra-step: every worker's own prompts; None: whoever has room takes the next."""
    place: Callable[[Snapshot], list[Placement]]
    move: Callable[[Running], list[Move]]


def load(worker: WorkerView) -> int:
    """Slots in use."""
    return len(worker.held) - len(worker.parked)


def as_given(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    """The plan's own order."""
    return list(prompts)


def stay(running: Running) -> list[Move]:
    """Nothing is moved."""
    return []


def take(queue: StepQueue, prompts: Iterable[str], room: int) -> list[Sample]:
    """The next samples of these prompts, as many as there is room for."""
    taken: list[Sample] = []
    for prompt in prompts:
        for sample in queue.groups.get(prompt, ()):
            if len(taken) == room:
                return taken
            taken.append(sample)
    return taken
