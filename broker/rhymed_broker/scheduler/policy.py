"""The interface of a scheduling policy: what it sees, and what it answers. Pure.

A policy is four functions. `rank` works between steps: in which order a step's prompts are begun. Inside a step
`deal` gives each worker its own prompts in advance, or is None; `assign` fills free slots. `move` names
running samples that another worker should continue. They are asked again and again, and keep no state: everything
they may depend on is in their arguments.

What they see are live views of the ledger, not copies, so a snapshot costs nothing; a policy must not change them.
`dispatch` checks every answer. A sample may be assigned to a worker with a free slot whose version is within the
queue's `earliest_version` and `newest_version`; samples that a policy does not assign keep waiting.

To add a policy: write a module with a `Policy`, and name it in `POLICIES` (`__init__.py`) and in the setting
`schedule.policy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rhymed.core.messages import Role, SampleId
from rhymed_broker.scheduler.pace import Pace
from rhymed_broker.states import Sample

Deal = Mapping[str, Sequence[str]]  # worker -> prompts, in the order in which it begins them
Expect = Callable[[str], float]  # prompt -> expected response tokens of one of its samples
NOTHING_SEEN = Pace()
"""All engines are equal."""


class WorkerView(Protocol):
    """A worker as policies see it. Its weights are not newer than the run's version."""

    name: str
    role: Role
    slots: int
    version: int  # policy version loaded; -1: none

    @property
    def held(self) -> Mapping[SampleId, Sample]:
        """The samples that it holds."""

    @property
    def parked(self) -> Collection[SampleId]:
        """Held samples that are written ahead to the end: they wait for newer weights without a slot."""


class StepQueue(NamedTuple):
    """One step's samples that wait for a worker."""

    step: int
    earliest_version: int  # the oldest weights that may begin them
    oldest_version: int  # with older weights they are written ahead, and verified with weights of this version
    newest_version: int
    groups: Mapping[str, Mapping[Sample, None]]  # prompt -> its samples, in the order of `rank`; none is empty
    size: int  # samples
    deal: Deal | None = None  # of the step, if the policy deals
    expected: Mapping[str, float] = {}  # prompt -> response tokens, when `groups` were ranked
    unprobed: Collection[str] = ()  # prompts without history and without samples that have begun
    work: float = 0.0  # expected tokens of all these samples
    survival: float = 1.0  # share of tokens written ahead that newer weights keep

    def ahead_of(self, worker: WorkerView) -> bool:
        """Would this worker write them ahead?"""
        return worker.version < self.oldest_version

    def fits(self, worker: WorkerView) -> bool:
        """May this worker have them? It parks at most as many as it has slots, and fewer if few tokens survive."""
        if worker.role == "reward":
            return True
        if not self.earliest_version <= worker.version <= self.newest_version:
            return False
        most = worker.slots * (1 + self.survival)
        return not self.ahead_of(worker) or (len(worker.parked) < worker.slots and len(worker.held) < most)

    def without(self, excluded: Collection[Sample]) -> StepQueue:
        groups = {
            prompt: kept
            for prompt, group in self.groups.items()
            if (kept := {sample: None for sample in group if sample not in excluded})
        }
        return self._replace(groups=groups, size=sum(map(len, groups.values())))


class Snapshot(NamedTuple):
    """Input of `assign`."""

    queues: Sequence[StepQueue]  # evaluations, then steps, oldest first
    workers: Sequence[WorkerView]  # with at least one free slot
    pace: Pace = NOTHING_SEEN
    limits: Mapping[str, int] = {}  # worker -> samples that it should run at most, as `move` last decided
    end_s: float = 0.0  # until the step in flight ends, as `move` last expected
    rate: float = math.inf  # tokens per second of all workers with full slots


class Assignment(NamedTuple):
    worker: str
    samples: list[Sample]


class Move(NamedTuple):
    """A running sample that another worker should continue."""

    sample: Sample
    target: str


class Running(NamedTuple):
    """Input of `move`, about once a second."""

    samples: Sequence[Sample]  # of the oldest step that is not generated
    size: int  # samples of that step
    workers: Mapping[str, WorkerView]  # all rollout workers that may continue them
    left: Callable[[Sample], float]  # tokens still expected of it
    total: Callable[[Sample], float]  # tokens expected of it when its step was opened
    pace: Pace = NOTHING_SEEN
    waiting: int = 0  # samples of that step that wait
    verified: float = 0.1  # tokens that are generated in the time in which one is verified that a moved sample has
    queued: float = 0.0  # expected tokens of all samples that wait, and for which the workers' weights are new enough
    synchronous: bool = True  # a step begins when the one before it is trained, but for what is written ahead
    ahead: bool = False  # samples wait that may be written ahead


class Shift(NamedTuple):
    """Answer of `move`."""

    moves: list[Move]
    limits: Mapping[str, int] = {}  # worker -> samples that it should run at most, until the next answer
    end_s: float = 0.0  # until the step ends, at the earliest


class Policy(NamedTuple):
    rank: Callable[[int, Sequence[str], Expect], list[str]]
    """Between steps: (step, prompts, expected length) -> the order in which its prompts are begun."""
    deal: Callable[[Sequence[str], Sequence[WorkerView], Expect], Deal] | None
    """Inside a step: each worker's own prompts; None: a worker with a free slot takes the next one."""
    assign: Callable[[Snapshot], list[Assignment]]
    move: Callable[[Running], Shift]


def load(worker: WorkerView) -> int:
    """Slots in use."""
    return len(worker.held) - len(worker.parked)


def as_given(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    """In the plan's order."""
    return list(prompts)


def stay(running: Running) -> Shift:
    return Shift([])


def take(queue: StepQueue, prompts: Iterable[str], room: int) -> list[Sample]:
    """The next samples of these prompts, at most `room`."""
    taken: list[Sample] = []
    for prompt in prompts:
        for sample in queue.groups.get(prompt, ()):
            if len(taken) == room:
                return taken
            taken.append(sample)
    return taken
