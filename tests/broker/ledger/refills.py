"""A run of the ledger with dynamic sampling: a store that remembers, two workers, a trainer, and any order of events.

What happens next is chosen by the caller; what a sample is rewarded with is a function of its id. A crash of the
broker loses the writes that were not yet in the store.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rhymed.core.messages import Cursor, Drawn, JournalEntry, SampleId, SampleInfo, Score
from rhymed_broker.ledger.actions import Action, Assign, Cancel, Load, Mark, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.plan import Plan
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import Story, info

Event = Callable[[], None]
Reward = Callable[[SampleId], float]


def ids(count: int) -> list[str]:
    return [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(1, count + 1)]


def flat_share(share: float, salt: int = 0) -> Reward:
    """About this share of the groups has equal rewards."""

    def reward(id: SampleId) -> float:
        flat = random.Random(f"{id.step}/{id.prompt}/{salt}").random() < share
        return 0.5 if flat else float(id.index)

    return reward


def length(id: SampleId) -> int:
    """Response tokens: a prompt keeps about its own, whose order changes now and then."""
    return int(id.prompt, 16) % 50 + random.Random(f"{id.step}/{id.prompt}/{id.index}").randrange(1, 30)


class Play:
    def __init__(
        self,
        plan: Plan,
        rule: SignalRule | None,
        reward: Reward,
        *,
        staleness: int = 0,
        ahead: int = 0,
        workers: int = 2,
        every: int = 2,
    ) -> None:
        """`every`: steps between checkpoints."""
        self.plan, self.rule, self.reward, self.every = plan, rule, reward, every
        self.staleness, self.ahead = staleness, ahead
        self.names = [f"w{number}" for number in range(workers)]
        self.stored: dict[SampleId, SampleInfo] = {}
        self.rewards: dict[SampleId, float] = {}
        self.marks: dict[SampleId, tuple[str, str]] = {}
        self.drawn: dict[int, Drawn] = {}
        self.forgotten = 0
        self.outbox: list[Event] = []
        self.trained: dict[int, list[SampleId]] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        self.checkpoint = self.trainer_at = 0
        self.start_broker()

    # The broker, new or after a crash

    def start_broker(self, lost: int = 10**9) -> None:
        """`lost`: newest writes that the store never got."""
        written = self.outbox[: max(0, len(self.outbox) - lost)]
        self.outbox = []
        for write in written:
            write()
        rules = Rules(max_staleness=self.staleness, run_ahead=self.ahead, max_retries=3)
        self.story = Story(Ledger(rules, signal=self.rule))
        self.work: dict[str, dict[SampleId, int]] = {name: {} for name in (*self.names, "r0")}
        self.versions = dict.fromkeys(self.names, self.trainer_at)
        self.loads: dict[str, int] = {}
        self.task: Train | None = None
        self.story.join("trainer", "trainer", version=self.trainer_at)
        ledger, drawn = self.story.ledger, [self.drawn[step] for step in sorted(self.drawn)]
        recent = self.plan.sampler.recent + self.story.ledger.rules.reach + 1 if self.plan.sampler else 0
        drawn = [one for one in drawn if one.step >= self.forgotten - 1 - recent]
        ledger.start(self.plan, self.trainer_at, self.journal(), self.story.now, None, drawn)
        self.perform(self.story.drain())
        for name in self.names:
            self.perform(self.story.join(name, "rollout", slots=3, version=self.trainer_at))
        self.perform(self.story.join("r0", "reward", slots=4))

    def journal(self) -> list[JournalEntry]:
        found = []
        for id in sorted({*self.stored, *self.marks}):
            if id.step >= self.forgotten:
                state, reason = self.marks.get(id, ("scored" if id in self.rewards else "generated", ""))
                oldest = self.stored[id].versions[0][0] if id in self.stored else 0
                entry = JournalEntry(
                    id=id,
                    state=state,
                    oldest_version=oldest,
                    reward=self.rewards.get(id),
                    reason=reason,
                    length=length(id) if id in self.stored else 0,
                )
                found.append(entry)
        return found

    # What the actions do

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Assign(name, assigned):
                    self.work[name] |= dict.fromkeys(assigned, self.versions[name])
                case ScoreSamples(name, assigned):
                    self.work[name] |= dict.fromkeys(assigned, 0)
                case Cancel(name, cancelled):
                    for id in cancelled:
                        self.work[name].pop(id, None)
                case Load(name, version):
                    self.loads[name] = version
                case Mark():
                    self.outbox.append(lambda mark=action: self.write(mark))
                case Train():
                    self.flush()
                    self.task = action

    def write(self, mark: Mark) -> None:
        self.marks |= dict.fromkeys(mark.ids, (mark.state, mark.reason))
        if mark.drawn is not None:
            self.drawn[mark.drawn.step] = mark.drawn

    def forget(self, below: int) -> None:
        self.forgotten = max(self.forgotten, below)

    def flush(self) -> None:
        for write in self.outbox:
            write()
        self.outbox = []

    # What may happen next

    def events(self) -> list[Event]:
        found: list[Event] = []
        for name in self.names:
            found += [lambda name=name, id=id: self.generate(name, id) for id in self.work[name]]
            if name in self.loads:
                found.append(lambda name=name: self.load(name))
        found += [lambda id=id: self.score(id) for id in self.work["r0"]]
        if self.task is not None:
            found.append(self.train)
        if not found:
            found.append(lambda: self.perform(self.story.tick(0.1)))
        return found

    def generate(self, name: str, id: SampleId, again: bool = False) -> None:
        version = self.work[name].pop(id)
        if self.versions[name] < id.step - self.staleness:  # written ahead: it is verified with newer weights
            self.work[name][id] = version
            self.story.ledger.parked(name, [id], self.story.now)
            self.perform(self.story.drain())
            return
        version = max(version, id.step - self.staleness)
        made = self.stored.setdefault(
            id, replace(info(id, version), length=length(id), versions=[(version, length(id))])
        )
        for _ in range(1 + again):
            self.story.ledger.generated(name, [made], self.story.now)
        self.perform(self.story.drain())

    def score(self, id: SampleId) -> None:
        del self.work["r0"][id]
        self.rewards[id] = self.reward(id)
        self.story.ledger.scored("r0", [Score(id=id, reward=self.rewards[id])], self.story.now)
        self.perform(self.story.drain())

    def load(self, name: str) -> None:
        self.versions[name] = self.loads.pop(name)
        self.perform(self.story.loaded(name, self.versions[name]))

    def train(self) -> None:
        task, self.task = self.task, None
        assert task is not None
        assert self.trained.setdefault(task.step, task.ids) == task.ids, "trained again, it is another step"
        self.metrics[task.step] = task.metrics
        self.trainer_at = task.step + 1
        self.perform(self.story.trained(task.step))
        if self.trainer_at % self.every == 0:
            older, self.checkpoint = self.checkpoint, self.trainer_at
            self.outbox.append(lambda: self.forget(older))

    def kill_trainer(self) -> None:
        """It begins again from its checkpoint; the broker dies with it, which is the harder case."""
        self.trainer_at = self.checkpoint
        self.start_broker(lost=1)

    @property
    def over(self) -> bool:
        return self.trainer_at >= self.plan.steps

    def run(self, seed: int = 0) -> Play:
        """To the end, in an order of events that depends on the seed alone."""
        chance, count = random.Random(seed), 0
        while not self.over:
            chance.choice(self.events())()
            count += 1
            assert count < 20_000, "it stands still"
        self.flush()
        return self

    # What came of it

    def draws(self) -> list[str]:
        """All prompts that trained steps drew, in the order of the sequence."""
        plan, places = self.plan, list[tuple[tuple[int, int], list[str]]]()
        for step, drawn in self.drawn.items():
            first, _ = plan.draw(drawn.start, plan.prompts_per_step)
            refills, after = plan.draw(drawn.refill, drawn.refilled, first)
            assert len(refills) == drawn.refilled
            places += [(_at(drawn.start, 0), first), (_at(drawn.refill, 1), refills)]
            assert {id.prompt for id in self.trained[step]} <= {*first, *refills}
            assert not set(first) & set(refills), "a prompt is in the step twice"
            assert after.drawn <= drawn.after.drawn
        return [prompt for _, prompts in sorted(places, key=lambda place: place[0]) for prompt in prompts]


def _at(cursor: Cursor, rank: int) -> tuple[int, int]:
    return cursor.drawn, rank
