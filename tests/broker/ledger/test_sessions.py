"""Samples in turns: environment workers answer, rollout workers write, and any of them may be lost."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from rhymed.core.messages import Call, Drafting, Heartbeat, Holding, JournalEntry, SampleId
from rhymed_broker.ledger.actions import Act, Action, Assign, Close, Load, Mark, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.meter import rollout_side
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story, info

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)
B0, B1 = SampleId(0, "b", 0), SampleId(0, "b", 1)
DRAFTING = Drafting(forwards=2, drafted=3, accepted=1, timed_s=1.0, plain_s=2.0, draft_s=0.5)


class Turns(Story):
    def answered(self, name: str, *ids: SampleId) -> list[Action]:
        self.ledger.answered(name, ids, self.now)
        return self.drain()

    def turned(self, name: str, *ids: SampleId, drafting: Drafting | None = None) -> list[Action]:
        self.ledger.turned(name, [info(id, drafting=drafting) for id in ids], self.now)
        return self.drain()


@pytest.fixture
def story() -> Turns:
    return Turns(Ledger(Rules(environment=True, max_retries=1)))


def test_a_sample_goes_to_and_fro_until_its_environment_ends_it(story: Turns) -> None:
    story.begin(SmallPlan())
    assert story.join("w", "rollout") == [], "there is no prompt yet"
    assert story.join("environment-0", "environment") == [Act("environment-0", [A0, A1])]
    assert story.state(A0) == "acting"
    assert story.answered("environment-0", A0, A1) == [Assign("w", [A0, A1], (A0, A1))]
    assert story.turned("w", A0, drafting=DRAFTING) == [Act("environment-0", [A0])]
    assert story.answered("environment-0", A0) == [Assign("w", [A0], (A0,))]
    story.turned("w", A0, drafting=DRAFTING)
    story.join("r", "reward")
    done = msgspec.structs.replace(info(A0, length=25), turns=[10, 5, 10])
    story.ledger.generated("environment-0", [done], story.now)
    assert story.drain() == [ScoreSamples("r", [A0])]
    sample = story.ledger.samples.get(A0)
    assert sample is not None
    assert (sample.length, sample.drafting) == (25, Drafting(4, 6, 2, 2.0, 4.0, 1.0))
    assert story.ledger.samples.counts["tokens"] == 20, "of the policy"


def test_the_rate_of_a_step_is_that_of_what_the_policy_wrote(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    done = [msgspec.structs.replace(info(id, length=25), turns=[10, 5, 10]) for id in (A0, A1)]
    story.ledger.generated("environment-0", done, story.now)
    open_step = story.ledger.samples.open_steps[0]
    metrics = rollout_side(0, open_step.meter, open_step.samples.values())
    assert (metrics["rollout/tokens"], metrics["response_length/mean"]) == (40, 25)


def test_the_calls_of_a_step_are_its_metrics(story: Turns) -> None:
    story.begin(SmallPlan(steps=1))
    story.join("environment-0", "environment")
    story.join("w", "rollout")
    holdings, meter = story.ledger.holdings, story.ledger.samples.open_steps[0].meter
    story.answered("environment-0", A0, A1)
    assert meter.tools.read() == {}
    story.turned("w", A0, A1)
    add, broken = Call(name="add", seconds=0.25), Call(name="add", seconds=0.75, error="too large")
    unknown = Call(name="multiply", error="there is no tool 'multiply'")
    holdings.called("someone", [A0], [[add]])
    holdings.called("environment-0", [A0, A1], [[add, unknown], [broken]])
    story.answered("environment-0", A0, A1)
    holdings.called("environment-0", [A0, A1], [[add], [add]])  # repeated: the samples are with the policy
    assert meter.tools.read() == {
        "tools/calls": 3.0, "tools/error_rate": pytest.approx(2 / 3), "tools/refused_rate": pytest.approx(1 / 3),
        "timing_s/call": 0.5, "timing_s/call_max": 0.75,
        "tools/add/calls": 2.0, "tools/add/error_rate": 0.5, "timing_s/call/add": 0.5,
    }  # fmt: skip
    story.turned("w", A0, A1)
    many = [[Call(name=f"tool-{number}", seconds=1.0) for number in range(100)]]
    holdings.called("environment-0", [A0], many)
    assert len([name for name in meter.tools.read() if name.startswith("tools/tool-")]) == 2 * 63, "a bounded number"


def test_a_step_is_generated_when_no_sample_goes_on(story: Turns) -> None:
    story.begin(SmallPlan())
    open_step = story.ledger.samples.open_steps[0]
    assert not open_step.all_generated
    story.join("environment-0", "environment")
    assert not open_step.all_generated
    story.ledger.generated("environment-0", [info(A0), info(A1)], story.now)
    assert open_step.all_generated


def test_a_sample_waits_for_the_worker_that_has_its_environment(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment", slots=2)
    story.join("w", "rollout")
    story.answered("environment-0", A0, A1)
    assert story.join("environment-1", "environment") == []
    assert story.turned("w", A0, A1) == [Act("environment-0", [A0, A1])]
    story.ledger.leave("environment-0", story.now)
    assert story.drain() == [Act("environment-1", [A0, A1])], "its environment is gone: another one rebuilds it"


def test_what_waited_for_a_worker_that_is_gone_is_not_kept_under_its_name(story: Turns) -> None:
    """Else every worker that leaves with samples waiting would keep them until the next rollback."""
    story.begin(SmallPlan())
    story.join("environment-0", "environment", slots=1)
    story.join("w", "rollout")
    story.join("environment-1", "environment", slots=1)
    story.answered("environment-0", A0)
    story.answered("environment-1", A1)
    story.ledger.drain_worker("environment-0", True, story.now)
    story.turned("w", A0)
    story.ledger.leave("environment-0", story.now)
    story.drain()
    assert story.ledger.acting._back.keys() <= {"environment-1"}


def test_a_turn_is_best_written_where_the_last_one_was(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w1", "rollout")
    assert story.answered("environment-0", A0, A1) == [Assign("w1", [A0, A1], (A0, A1))]
    story.join("w2", "rollout")
    story.turned("w1", A0, A1)
    assert story.answered("environment-0", A1) == [Assign("w1", [A1], (A1,))]
    story.ledger.leave("w1", story.now)
    assert story.drain() == [Assign("w2", [A1], (A1,))]
    assert story.answered("environment-0", A0) == [Assign("w2", [A0], (A0,))]


def test_what_a_lost_environment_worker_had_is_answered_by_another(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("environment-1", "environment")
    story.ledger.leave("environment-0", story.now)
    assert story.drain() == [Act("environment-1", [A0, A1])]
    assert story.answered("environment-0", A0) == [], "it does not hold it any more"
    assert story.state(A0) == "acting"


def test_a_broken_environment_drops_its_sample_with_the_reason(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.give_back("environment-0", A0)
    assert story.state(A0) == "turned"
    assert story.tick() == [Act("environment-0", [A0])]
    story.give_back("environment-0", A0)
    assert story.state(A0) == "dropped"
    assert "environment-0: cannot" in story.ledger.samples.last_drop


def test_a_restart_finds_whose_turn_it_is(story: Turns) -> None:
    journal = [JournalEntry(id=A0, state="turned"), JournalEntry(id=A1, state="begun")]
    story.begin(SmallPlan(), journal=journal)
    assert story.join("w", "rollout") == [Assign("w", [A1], (A1,))]
    assert story.join("environment-0", "environment") == [Act("environment-0", [A0])]


def test_workers_claim_what_they_held_before_a_restart(story: Turns) -> None:
    story.begin(SmallPlan(), journal=[JournalEntry(id=A1, state="begun")])
    assert story.join("environment-0", "environment", slots=1, holding=[A0]) == []
    assert (story.state(A0), story.state(A1)) == ("acting", "waiting")


def test_a_sample_that_the_store_lacks_is_written_again(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w", "rollout")
    story.answered("environment-0", A0, A1)
    assert story.turned("nobody", A0) == [], "a report of who does not hold it"
    assert story.state(A0) == "running"


def test_only_who_may_moves_a_sample(story: Turns) -> None:
    """Reports of workers without keys, or of stolen ones."""
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.turned("environment-0", A0)
    assert story.state(A0) == "acting", "environments write no turns"
    story.join("w", "rollout")
    story.answered("environment-0", A0, A1)
    story.generated("w", A0)
    assert story.state(A0) == "running", "a rollout worker ends no sample that has an environment"
    story.answered("w", A0)
    story.answered("environment-0", A0)
    assert story.state(A0) == "running"
    assert story.ledger.samples.counts["unheld"] == 2


def test_without_environments_there_are_no_turns() -> None:
    story = Turns(Ledger(Rules()))
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.turned("w", A0)
    assert story.state(A0) == "running", "else it waited for an environment worker for ever"


def test_a_repeated_report_of_a_turn_costs_a_question_and_loses_nothing(story: Turns) -> None:
    """It arrives again when the sample is back with its worker, which writes the next turn."""
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w", "rollout")
    story.answered("environment-0", A0, A1)
    story.turned("w", A0)
    story.answered("environment-0", A0)
    assert story.turned("w", A0) == [Act("environment-0", [A0])], "it finds that the policy goes on"
    assert story.turned("w", A0) == []
    assert story.answered("environment-0", A0) == [Assign("w", [A0], (A0,))]
    assert story.answered("environment-0", A0) == []
    assert story.state(A0) == "running"


def test_a_drained_environment_worker_gets_nothing(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment", slots=1)
    story.ledger.drain_worker("environment-0", True, story.now)
    story.drain()
    assert story.join("environment-1", "environment") == [Act("environment-1", [A1])]


def test_many_samples_fill_the_workers_that_there_are(story: Turns) -> None:
    story.begin(SmallPlan(groups=3000))
    (first,) = story.join("environment-0", "environment", slots=10)
    assert isinstance(first, Act)
    assert len(first.ids) == 10
    assert len(story.ledger.samples.queues["turned"]) == 5990


def test_a_worker_opens_no_more_samples_than_it_may(story: Turns) -> None:
    story.begin(SmallPlan(groups=2))
    assert story.join("environment-0", "environment", sessions=3) == [Act("environment-0", [A0, A1, B0])]
    story.join("w", "rollout")
    assert story.answered("environment-0", A0, A1, B0) == [Assign("w", [A0, A1, B0], (A0, A1, B0))]
    assert story.turned("w", A1) == [Act("environment-0", [A1])], "one that is open goes on"
    story.ledger.generated("environment-0", [info(A1)], story.now)
    assert Act("environment-0", [B1]) in story.drain(), "what is complete makes room"


def test_a_dropped_sample_is_closed_where_it_is_open(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment", sessions=2)
    story.join("w", "rollout")
    story.answered("environment-0", A0, A1)
    assert story.give_back("w", A0, retry=False) == [
        Close("environment-0", [A0]),
        Mark([A0], "dropped", "cannot"),
    ]


def test_a_sample_that_is_given_back_may_be_opened_by_another_worker(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment", sessions=2)
    story.join("environment-1", "environment", sessions=2)
    assert story.give_back("environment-0", A0) == [Close("environment-0", [A0]), Act("environment-1", [A0])]


def test_a_restarted_broker_learns_who_has_what_open(story: Turns) -> None:
    journal = [JournalEntry(id=A0, state="turned"), JournalEntry(id=A1, state="begun")]
    story.begin(SmallPlan(), journal=journal)
    story.join("w", "rollout")
    other = SampleId(0, "zz", 0)
    assert story.join("environment-1", "environment", slots=1, sessions=1, open=[A1, other]) == [
        Close("environment-1", [other])
    ], "A0 would be one too many"
    assert story.turned("w", A1) == [Act("environment-1", [A1])]
    assert story.join("environment-0", "environment", sessions=1, open=[A1]) == [
        Close("environment-0", [A1]),
        Act("environment-0", [A0]),
    ]


def test_an_older_step_is_not_kept_from_its_end_by_samples_of_a_later_one() -> None:
    story = Turns(Ledger(Rules(environment=True, run_ahead=1)))
    story.begin(SmallPlan())
    later = SampleId(1, "a", 0)
    assert story.join("environment-0", "environment", sessions=1) == [Act("environment-0", [A0])]
    assert story.join("environment-1", "environment", sessions=1) == [Act("environment-1", [A1])]
    story.ledger.generated("environment-1", [info(A1)], story.now)
    assert story.drain() == [Act("environment-1", [later])]
    story.ledger.leave("environment-0", story.now)
    assert story.drain() == [Act("environment-1", [A0])], "the later one waits for weights that wait for this one"
    assert story.state(SampleId(1, "a", 1)) == "turned"


class World:
    """Workers that do what they are told in any order, fail and vanish; and a policy without end of patience."""

    def __init__(self, seed: int, steps: int = 3, run_ahead: int = 1) -> None:
        self.draw = random.Random(seed)
        self.story = Turns(Ledger(Rules(environment=True, run_ahead=run_ahead, max_retries=1000, max_losses=10_000)))
        self.open: dict[str, set[SampleId]] = {}
        self.acting: dict[str, set[SampleId]] = {}
        self.running: set[SampleId] = set()
        self.turns: Counter[SampleId] = Counter()
        self.trained = 0
        self.steps = steps
        self.perform(self.story.begin(SmallPlan(steps=steps, groups=3)))
        self.perform(self.story.join("w", "rollout", slots=64))
        self.perform(self.story.join("r", "reward", slots=64))
        for number in range(2):
            self.join(f"environment-{number}")

    def join(self, name: str) -> None:
        self.open[name], self.acting[name] = set(), set()
        self.perform(self.story.join(name, "environment", slots=2, sessions=2))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Act(name, ids):
                    assert not any(ids[0] in others for other, others in self.open.items() if other != name)
                    self.open[name] |= set(ids)
                    self.acting[name] |= set(ids)
                    counts = Counter(id.step for id in self.open[name])
                    assert max(counts.values()) <= 2, "it opens one more only for an older step"
                case Close(name, ids):
                    self.open[name] -= set(ids)
                case Assign(_, ids):
                    self.running |= set(ids)
                case Load(_, version):
                    self.perform(self.story.loaded("w", version))
                case ScoreSamples(name, ids):
                    self.perform(self.story.scored(name, *ids))
                case Train(_, step, _, _):
                    self.trained = step + 1
                    self.perform(self.story.trained(step))

    def do(self, *, fail: bool) -> None:
        """One event."""
        kind = self.draw.random()
        acting = [(name, id) for name in sorted(self.acting) for id in sorted(self.acting[name])]
        version = self.story.ledger.workers.by_name["w"].version
        ready = [id for id in sorted(self.running) if id.step <= version]  # others wait for their weights
        if fail and kind < 0.1:
            name = self.draw.choice(sorted(self.open))
            self.story.ledger.leave(name, self.story.now)
            self.open[name], self.acting[name] = set(), set()
            self.perform(self.story.drain())
            if len(self.open) == 2:
                del self.open[name], self.acting[name]
            else:
                self.join(name)
                self.join("environment-0" if name != "environment-0" else "environment-1")
        elif acting and kind < 0.6:
            name, id = self.draw.choice(acting)
            self.acting[name].discard(id)
            if fail and self.draw.random() < 0.2:
                self.open[name].discard(id)
                self.perform(self.story.give_back(name, id))
                self.perform(self.story.tick(0.001))
            elif self.turns[id] >= 2:
                self.open[name].discard(id)
                self.story.ledger.generated(name, [info(id)], self.story.now)
                self.perform(self.story.drain())
            else:
                self.perform(self.story.answered(name, id))
        elif ready:
            id = self.draw.choice(ready)
            self.running.discard(id)
            self.turns[id] += 1
            self.perform(self.story.turned("w", id))
        else:
            self.perform(self.story.tick(0.001))


@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_no_step_waits_for_ever(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.do(fail=True)
    for _ in range(2000):
        if world.trained == world.steps:
            return
        world.do(fail=False)
    raise AssertionError(f"step {world.trained} does not end: {world.story.ledger.samples.depths()}, {world.open}")


def test_tries_of_one_turn_do_not_count_against_the_next(story: Turns) -> None:
    """max_retries is 1: a second failure of the same turn would drop the sample."""
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w", "rollout")
    for turn in range(4):
        if turn:
            story.turned("w", A0)
        story.give_back("environment-0", A0)
        story.tick()
        story.answered("environment-0", A0)
        story.give_back("w", A0)
        story.tick()
    sample = story.ledger.samples.get(A0)
    assert sample is not None
    assert (sample.state, sample.failures, sample.tries) == ("running", 8, 1)
    story.give_back("w", A0)
    assert story.state(A0) == "dropped"
    assert "given up after 2 tries" in story.ledger.samples.last_drop


def test_an_environment_worker_gets_one_suspect() -> None:
    story = Turns(Ledger(Rules(environment=True, max_losses=2)))
    story.begin(SmallPlan(groups=2))
    story.join("environment-0", "environment")
    for number in range(2):  # workers die with all of them
        story.ledger._remove(story.ledger.workers.by_name[f"environment-{number}"], "it died", story.now)
        story.join(f"environment-{number + 1}", "environment")
    assert set(story.ledger.samples.suspects) == {story.ledger.samples.get(id) for id in (A0, A1, B0, B1)}
    acting = [id for id in (A0, A1, B0, B1) if story.state(id) == "acting"]
    assert len(acting) == 1
    story.answered("environment-2", *acting)
    assert sum(story.state(id) == "acting" for id in (A0, A1, B0, B1)) == 1, "it is clear, and the next one is tried"
    story.join("environment-3", "environment")
    assert sum(story.state(id) == "acting" for id in (A0, A1, B0, B1)) == 2, "one for each worker"


def test_the_forecast_has_the_tokens_of_the_policy() -> None:
    class Noted:
        def __init__(self) -> None:
            self.ended: list[int] = []

        def finished(self, step: int, prompt: str, tokens: int) -> None:
            self.ended.append(tokens)

    story = Turns(Ledger(Rules(environment=True)))
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w", "rollout")
    story.answered("environment-0", A0)
    story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=[Holding(id=A0, tokens=7)]), story.now)
    sample = story.ledger.samples.get(A0)
    assert sample is not None
    assert (sample.written, sample.earlier) == (7, 0)
    story.ledger.turned("w", [info(A0, length=10)], story.now)
    story.drain()
    story.answered("environment-0", A0)
    assert (sample.written, sample.earlier) == (10, 10)
    story.ledger.heartbeat(
        Heartbeat(worker="w", version=0, holding=[Holding(id=A0, tokens=19, before=15)]), story.now
    )
    assert sample.written == 14, "the environment wrote 5"
    story.ledger.turned("w", [info(A0, length=10)], story.now)
    story.drain()
    noted = story.ledger.dispatch.forecast = Noted()  # type: ignore[assignment]
    story.ledger.generated("environment-0", [msgspec.structs.replace(info(A0, length=25), turns=[10, 5, 10])], 0.0)
    assert noted.ended == [20]  # type: ignore[attr-defined]
