"""Helpers for tests of the ledger: a plan, workers, and a ledger with a clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rhymed.core.messages import Cursor, Drafting, Heartbeat, Holding, Join, Role, SampleId, SampleInfo, Score
from rhymed_broker.ledger.actions import Action, Recall
from rhymed_broker.ledger.evaluation import Evaluation
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Sample


@dataclass
class FakeWorker:
    """A worker as policies see it."""

    name: str
    slots: int = 8
    version: int = 0
    role: Role = "rollout"
    held: dict[SampleId, Sample] = field(default_factory=dict)
    parked: set[SampleId] = field(default_factory=set)


LETTERS = list("abcdefghijklmnopqrstuvwxyz")


class SmallPlan:
    """`groups` prompts a step, named a, b, …, in that order in every epoch; two samples each.

    `prompts`: in the dataset; 0: as many as a step takes, so that every step has the same ones.
    """

    group_size = 2
    sampler = None

    def __init__(self, steps: int = 2, groups: int = 1, prompts: int = 0) -> None:
        self.steps = steps
        self.prompts_per_step = groups
        names = LETTERS if groups <= len(LETTERS) else [f"{number:04}" for number in range(groups)]
        self._prompts = names[: prompts or groups]
        self.size = len(self._prompts)

    def samples(self, step: int) -> list[SampleId]:
        prompts, _ = self.draw(self.cursor(step), self.prompts_per_step)
        return [SampleId(step, prompt, index) for prompt in prompts for index in range(self.group_size)]

    def cursor(self, step: int) -> Cursor:
        return Cursor(position=step * self.prompts_per_step)

    def draw(self, cursor: Cursor, count: int, without: Collection[str] = ()) -> tuple[list[str], Cursor]:
        drawn, position = list[str](), cursor.position
        assert not cursor.deferred
        while len(drawn) < min(count, len(self._prompts) - len(set(without))):
            prompt = self._prompts[position % len(self._prompts)]
            drawn += [prompt] if prompt not in without and prompt not in drawn else []
            position += 1
        return drawn, Cursor(position=position)

    def epoch(self, cursor: Cursor) -> int:
        return cursor.position // len(self._prompts)


def info(id: SampleId, version: int | None = None, length: int = 10, drafting: Drafting | None = None) -> SampleInfo:
    versions = [(id.step if version is None else version, length)]
    return SampleInfo(
        id=id, prompt_length=3, length=length, finish_reason="stop", versions=versions, drafting=drafting
    )


class Story:
    """A ledger with a clock; every method reports one event and returns the actions that follow."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now = 100.0
        self.recalls: list[Recall] = []

    def begin(
        self, plan: SmallPlan, position: int = 0, journal: Iterable = (), evaluation: Evaluation | None = None
    ) -> list[Action]:
        self.join("trainer", "trainer", version=position)
        self.ledger.start(plan, position, journal, self.now, evaluation)
        return self.drain()

    def join(
        self,
        name: str,
        role: Role,
        slots: int = 8,
        version: int = 0,
        holding: Iterable = (),
        *,
        asleep: bool = False,
        training: int = -1,
        sessions: int = 0,
        open: Iterable[SampleId] = (),
        whole_groups: bool = False,
    ) -> list[Action]:
        there = {"host": "h", "pid": 1, "slots": slots, "version": version, "asleep": asleep, "training": training}
        there["whole_groups"] = whole_groups
        join = Join(role=role, worker=name, holding=list(holding), sessions=sessions, open=list(open), **there)
        self.needs_start = self.ledger.join(join, self.now)
        return self.drain()

    def beat(
        self, name: str, holding: Iterable[SampleId | Holding] = (), version: int = 0, **report: str
    ) -> list[Action]:
        held = [each if isinstance(each, Holding) else Holding(id=each) for each in holding]
        self.ledger.heartbeat(Heartbeat(worker=name, version=version, holding=held, **report), self.now)
        return self.drain()

    def generated(
        self, name: str, *ids: SampleId, version: int | None = None, drafting: Drafting | None = None
    ) -> list[Action]:
        self.ledger.generated(name, [info(id, version, drafting=drafting) for id in ids], self.now)
        return self.drain()

    def scored(self, name: str, *ids: SampleId, error: str | None = None) -> list[Action]:
        reward = None if error else 1.0
        self.ledger.scored(name, [Score(id=id, reward=reward, error=error) for id in ids], self.now)
        return self.drain()

    def give_back(self, name: str, *ids: SampleId, retry: bool = True) -> list[Action]:
        self.ledger.given_back(name, ids, "cannot", self.now, retry=retry)
        return self.drain()

    def loaded(self, name: str, version: int, life: str = "") -> list[Action]:
        self.ledger.loaded(name, version, self.now, life)
        return self.drain()

    def trained(self, step: int) -> list[Action]:
        self.metrics = self.ledger.train_done(step, self.now)
        return self.drain()

    def tick(self, seconds: float = 1.0) -> list[Action]:
        self.now += seconds
        self.lost = self.ledger.tick(self.now)
        return self.drain()

    def drain(self) -> list[Action]:
        """`Recall` actions go to `recalls`."""
        actions = self.ledger.drain(self.now)
        check(self.ledger)
        self.recalls += [action for action in actions if isinstance(action, Recall)]
        return [action for action in actions if not isinstance(action, Recall)]

    def state(self, id: SampleId) -> str:
        sample = self.ledger.samples.get(id)
        assert sample is not None
        return sample.state


def check(ledger: Ledger) -> None:
    """The invariants that hold at any time."""
    samples = ledger.samples
    held: dict[SampleId, str] = {}
    for worker in ledger.workers.by_name.values():
        assert worker.busy == min(worker.slots, len(worker.held) - len(worker.parked))
        assert worker.parked <= worker.held.keys()
        for id, sample in worker.held.items():
            assert id not in held, f"{id} is with two workers"
            assert sample.worker == worker.name
            assert sample.state == {"rollout": "running", "environment": "acting", "reward": "scoring"}[worker.role]
            held[id] = worker.name
    in_hand = {sample.id for state in ("running", "acting", "scoring") for sample in samples.queues[state]}
    assert in_hand == held.keys()
    queued = sum(len(queue) for queue in samples.queues.values())
    assert queued == sum(len(open_step.samples) for open_step in samples.open_steps.values())
    for open_step in samples.open_steps.values():
        assert sum(open_step.counts.values()) == len(open_step.samples)
        for state, count in open_step.counts.items():
            assert count == sum(sample.state == state for sample in open_step.samples.values())
        for state, groups in open_step.unassigned.items():
            assert sum(len(group) for group in groups.values()) == open_step.counts[state]
            assert all(groups.values())
    busy = sum(worker.busy for worker in ledger.workers.by_name.values() if worker.role == "rollout")
    assert ledger.workers.occupancy.busy == busy
