"""Whatever happens in whatever order: every sample ends once, none is with two workers, staleness is kept."""

from __future__ import annotations

import zlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rhymed.core.messages import Drawn, Join, JournalEntry, SampleId, SampleInfo, Score
from rhymed_broker.ledger.actions import Action, Assign, Begin, Cancel, Load, Mark, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story, check, info

STEPS = 4
names = st.sampled_from(["w0", "w1", "w2", "r0", "r1"])


class Cluster(RuleBasedStateMachine):
    """A store that remembers, workers that do what they are told or fail, and a trainer with checkpoints."""

    staleness = 0
    prompts = 2  # in the dataset
    signal: SignalRule | None = None
    whole = False  # reward workers score whole groups

    def __init__(self) -> None:
        super().__init__()
        self.plan = SmallPlan(steps=STEPS, groups=2, prompts=self.prompts)
        self.reasons: dict[SampleId, str] = {}
        self.drawn: dict[int, Drawn] = {}
        self.asked: dict[int, set[str]] = {}  # step -> prompts that it ever had
        self.stored: dict[SampleId, SampleInfo] = {}
        self.rewards: dict[SampleId, float] = {}
        self.ended: dict[SampleId, list[str]] = {}
        self.work: dict[str, dict[SampleId, int]] = {}  # what workers really have, and the version they use for it
        self.versions: dict[str, int] = {}
        self.loads: dict[str, int] = {}
        self.task: Train | None = None
        self.begun: set[str] = set()  # prompts that the trainer received before its next step
        self.trainer_at = 0
        self.checkpoint = 0
        self._new_broker()

    def _new_broker(self) -> None:
        self.story = Story(
            Ledger(Rules(max_staleness=self.staleness, max_retries=3, overlap=True), signal=self.signal)
        )
        self.task = None
        for name in list(self.work):
            self._join(name)
        self._join_trainer()

    def _perform(self, actions: list[Action]) -> None:
        ledger = self.story.ledger
        for action in actions:
            match action:
                case Assign(name, ids):
                    for id in ids:
                        assert id not in self.stored or id not in self.work[name]
                        assert self.versions[name] >= id.step - self.staleness
                        self.work[name][id] = self.versions[name]
                case ScoreSamples(name, ids):
                    for id in ids:
                        assert id in self.stored
                        self.work[name][id] = 0
                    self._are_whole(ids)
                case Cancel(name, ids):
                    for id in ids:
                        self.work.get(name, {}).pop(id, None)
                case Load(name, version):
                    self.loads[name] = version
                case Mark(ids, state, reason, drawn):
                    for id in ids:
                        self.ended.setdefault(id, []).append(state)
                        self.reasons[id] = reason
                    if drawn is not None:
                        assert self.drawn.setdefault(drawn.step, drawn) == drawn, "trained again, it drew the same"
                case Begin(_, step, ids):
                    assert step == ledger.version == self.trainer_at
                    assert self.task is None
                    groups = {id.prompt for id in ids}
                    assert not groups & self.begun, "a trainer receives each group once"
                    self.begun |= groups
                    for prompt in groups:
                        group = ledger.samples.open_steps[step].group(prompt)
                        assert [one.id for one in group if one.state == "scored"] == [
                            id for id in ids if id.prompt == prompt
                        ]
                        assert {one.state for one in group} <= {"scored", "dropped"}
                case Train(_, step, ids, _):
                    assert self.begun <= {id.prompt for id in ids}
                    assert step == ledger.version == self.trainer_at
                    assert ids == sorted(set(ids))
                    for id in ids:
                        assert id in self.rewards
                        assert "dropped" not in self.ended.get(id, [])
                        assert self.stored[id].versions[0][0] >= step - self.staleness
                    self._has_signal(ids)
                    self.task = action
                case _:
                    pass

    def _are_whole(self, ids: list[SampleId]) -> None:
        """All samples of these groups but those that are settled."""
        for step, prompt in {(id.step, id.prompt) for id in ids} if self.whole else ():
            group = self.story.ledger.samples.open_steps[step].group(prompt)
            mine = [one.id for one in group if one.state == "scoring"]
            assert mine == sorted(id for id in ids if (id.step, id.prompt) == (step, prompt))
            assert {one.state for one in group} <= {"scoring", "scored", "dropped"}
            assert not any(one.state == "scored" for one in group), "a group is scored at once"

    def _together(self, name: str, ids: list[SampleId]) -> list[SampleId]:
        """What its worker reports or gives back with these."""
        groups = {(id.step, id.prompt) for id in ids} if self.whole and name[0] == "r" else set()
        return sorted({*ids, *(id for id in self.work[name] if (id.step, id.prompt) in groups)}) if groups else ids

    def _has_signal(self, ids: list[SampleId]) -> None:
        """All groups of the step, unless its refills are spent."""
        if self.signal is None or not ids:
            return
        step = self.story.ledger.samples.open_steps[ids[0].step]
        groups: dict[str, set[float]] = {}
        for id in ids:
            groups.setdefault(id.prompt, set()).add(self.rewards[id])
        flat = sum(len(rewards) < 2 for rewards in groups.values())
        assert not flat or step.refilled == self.signal.most

    def _journal(self) -> list[JournalEntry]:
        found = []
        for id in sorted({*self.stored, *self.ended}):
            states = self.ended.get(id, [])
            state = "dropped" if "dropped" in states else "scored" if id in self.rewards else "generated"
            if states and state == "scored":
                state = "trained"
            oldest = self.stored[id].versions[0][0] if id in self.stored else 0
            reason = self.reasons.get(id, "") if state == "dropped" else ""
            reward = self.rewards.get(id)
            found.append(JournalEntry(id=id, state=state, oldest_version=oldest, reward=reward, reason=reason))
        return found

    def _join(self, name: str) -> None:
        role = "rollout" if name[0] == "w" else "reward"
        self.work.setdefault(name, {})
        version = self.versions.setdefault(name, -1)
        self._perform(
            self.story.join(
                name, role, slots=3, version=version, holding=list(self.work[name]), whole_groups=self.whole
            )
        )

    def _join_trainer(self) -> None:
        self.task, self.begun = None, set()
        join = Join(role="trainer", worker="trainer", host="h", pid=1, version=self.trainer_at)
        if self.story.ledger.join(join, self.story.now):
            for id in list(self.ended):
                if id.step >= self.trainer_at and self.ended[id] == ["trained"]:
                    del self.ended[id]  # will be trained again: the weights that had it are gone
            drawn = [self.drawn[step] for step in sorted(self.drawn)]
            self.story.ledger.start(self.plan, self.trainer_at, self._journal(), self.story.now, None, drawn)
        self._perform(self.story.drain())

    @rule(name=names)
    def arrive(self, name: str) -> None:
        self.work.pop(name, None)  # a process that starts has nothing in hand
        self.versions.pop(name, None)
        self.loads.pop(name, None)
        self._join(name)

    @rule(name=names)
    def vanish(self, name: str) -> None:
        """Its last words may still arrive later: `work` stays."""
        if worker := self.story.ledger.workers.by_name.get(name):
            worker.seen -= 1000
            self._perform(self.story.tick(0.1))

    @rule(name=names, count=st.integers(1, 3), again=st.booleans())
    def report(self, name: str, count: int, again: bool) -> None:
        work = self.work.get(name, {})
        ids = self._together(name, sorted(work)[:count])
        for _ in range(1 + again):
            if name[0] == "w":
                infos = [self.stored.setdefault(id, info(id, work[id])) for id in ids]
                self.story.ledger.generated(name, infos, self.story.now)
            else:
                self.rewards.update({id: reward(id) for id in ids})
                self.story.ledger.scored(name, [Score(id=id, reward=reward(id)) for id in ids], self.story.now)
        for id in ids:
            del work[id]
        self._perform(self.story.drain())

    @rule(name=names, retry=st.booleans())
    def refuse(self, name: str, retry: bool) -> None:
        if ids := self._together(name, sorted(self.work.get(name, {}))[:1]):
            for id in ids:
                del self.work[name][id]
            self._perform(self.story.give_back(name, *ids, retry=retry))

    @rule(name=names)
    def load(self, name: str) -> None:
        if name in self.loads and name in self.story.ledger.workers.by_name:
            self.versions[name] = self.loads.pop(name)
            self._perform(self.story.loaded(name, self.versions[name]))

    @rule(name=names)
    def beat(self, name: str) -> None:
        if name in self.story.ledger.workers.by_name:
            self._perform(self.story.beat(name, list(self.work[name]), self.versions[name]))

    @rule(seconds=st.sampled_from([0.5, 3.0, 8.0]))
    def wait(self, seconds: float) -> None:
        for worker in self.story.ledger.workers.by_name.values():
            worker.seen = self.story.now + seconds
        self._perform(self.story.tick(seconds))

    @precondition(lambda self: self.task is not None)
    @rule(save=st.booleans())
    def train(self, save: bool) -> None:
        task, self.task, self.begun = self.task, None, set()
        assert task is not None
        self.trainer_at += 1
        self.checkpoint = self.trainer_at if save else self.checkpoint
        self._perform(self.story.trained(task.step))

    @rule()
    def kill_trainer(self) -> None:
        self.trainer_at = self.checkpoint
        self._join_trainer()

    @rule()
    def kill_broker(self) -> None:
        self._new_broker()

    @invariant()
    def consistent(self) -> None:
        check(self.story.ledger)
        for step, open_step in self.story.ledger.samples.open_steps.items():
            asked = self.asked.setdefault(step, set())
            asked |= open_step.places.keys()
            refills = 0 if self.signal is None else self.signal.most
            assert len(asked) <= self.plan.prompts_per_step + refills, "what was decided stays decided"
        for id, ends in self.ended.items():
            assert len(ends) == 1, f"{id} ended {ends}"

    def teardown(self) -> None:
        """Left in peace, the run comes to its end and every sample has ended once."""
        for name in ("w9", "r9"):
            self.arrive(name)
        for _ in range(400):
            if self.story.ledger.version == STEPS:
                break
            for name in self.work:
                self.load(name)
                self.report(name, 3, False)
                self.beat(name)
            if self.task is not None:
                self.train(True)
            self.wait(3.0)
        assert self.story.ledger.version == STEPS
        for step in range(STEPS):
            for prompt in self.asked.get(step, set()):
                for index in range(self.plan.group_size):
                    assert len(self.ended[SampleId(step, prompt, index)]) == 1


def reward(id: SampleId) -> float:
    """About half of the groups have no signal."""
    return 1.0 if zlib.crc32(f"{id.step}/{id.prompt}".encode()) % 2 else float(id.index)


class Pipelined(Cluster):
    staleness = 1


class Refilled(Pipelined):
    prompts = 9
    signal = SignalRule(most=3)


class Grouped(Refilled):
    whole = True


TestAtStaleness0 = Cluster.TestCase
TestAtStaleness1 = Pipelined.TestCase
TestWithRefills = Refilled.TestCase
TestWithWholeGroups = Grouped.TestCase
for case in (TestAtStaleness0, TestAtStaleness1, TestWithRefills, TestWithWholeGroups):
    case.settings = settings(
        max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
del case  # or it is a test, too
