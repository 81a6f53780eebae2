"""Engines and trainer on the same GPUs: they use them in turns. Stories: events in, exact actions out."""

from __future__ import annotations

import pytest

from rhymed.core.messages import EVAL, JournalEntry, SampleId
from rhymed_broker.ledger.actions import Action, Assign, Load, Mark, ScoreSamples, Sleep, Train
from rhymed_broker.ledger.engine import PATIENCE_S
from rhymed_broker.ledger.evaluation import Evaluation
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)
NEXT0, NEXT1 = SampleId(1, "a", 0), SampleId(1, "a", 1)


@pytest.fixture
def story() -> Story:
    return Story(Ledger(Rules(colocate=True, lost_after_s=10_000)))


def trains(actions: list[Action]) -> list[int]:
    return [action.step for action in actions if isinstance(action, Train)]


def asleep(story: Story, name: str) -> list[Action]:
    story.ledger.slept(name)
    return story.drain()


def begin(story: Story, *names: str, **plan: int) -> None:
    """Each worker has joined asleep, as a new process does, and was woken."""
    story.begin(SmallPlan(**plan))
    for name in names:
        assert story.join(name, "rollout", version=-1, asleep=True) == [Load(name, 0)]
        story.loaded(name, 0)
    story.join("r", "reward")


def complete(story: Story, name: str, *ids: SampleId) -> list[Action]:
    story.generated(name, *ids)
    return story.scored("r", *ids)


def test_the_trainer_gets_a_step_when_all_engines_sleep_and_they_wake_with_its_weights(story: Story) -> None:
    begin(story, "w", "v", steps=3)
    assert complete(story, "w", A0, A1) == [Sleep("w"), Sleep("v")]
    assert trains(asleep(story, "w")) == []
    assert trains(asleep(story, "v")) == [0]
    assert story.tick() == [], "no engine wakes while the trainer trains"
    assert story.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1), Load("v", 1)]
    assert story.loaded("w", 1) == [Assign("w", [NEXT0, NEXT1])]
    assert story.loaded("v", 1) == []


def test_who_was_not_ordered_to_sleep_may_be_given_samples(story: Story) -> None:
    begin(story, "w", "v")
    assert complete(story, "w", A0, A1) == [Sleep("w"), Sleep("v")]
    assert "w" not in story.ledger.workers.free["rollout"]
    story.ledger.undelivered("w")
    assert "w" in story.ledger.workers.free["rollout"]
    assert story.tick() == [Sleep("w")], "the trainer still waits for it"


def test_without_colocation_nobody_sleeps() -> None:
    story = Story(Ledger(Rules()))
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    assert trains(complete(story, "w", A0, A1)) == [0]


def test_a_worker_that_dies_before_it_sleeps_is_not_waited_for(story: Story) -> None:
    begin(story, "w", "v")
    complete(story, "w", A0, A1)
    asleep(story, "w")
    story.ledger.leave("v", story.now)
    assert trains(story.drain()) == [0]


def test_a_worker_that_returns_during_training_stays_asleep(story: Story) -> None:
    begin(story, "w")
    complete(story, "w", A0, A1)
    assert trains(asleep(story, "w")) == [0]
    assert story.join("w", "rollout", version=-1, asleep=True) == []
    assert story.tick() == []
    assert story.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1)]


def test_a_step_waits_for_an_engine_if_all_have_died(story: Story) -> None:
    """One of them may be awake still, and only its broker have been restarted."""
    begin(story, "w")
    complete(story, "w", A0, A1)
    story.ledger.leave("w", story.now)
    assert story.drain() == []
    assert trains(story.join("w", "rollout", version=-1, asleep=True)) == [0]


def test_after_the_trainers_death_the_next_one_gets_the_step_and_nobody_is_woken(story: Story) -> None:
    begin(story, "w")
    complete(story, "w", A0, A1)
    assert trains(asleep(story, "w")) == [0]
    story.ledger.leave("trainer", story.now)
    assert story.tick() == []
    assert trains(story.join("trainer", "trainer", version=0)) == [0]
    assert story.tick() == []


def test_a_trainer_that_rolls_back_lets_the_engines_wake(story: Story) -> None:
    begin(story, "w", steps=3)
    complete(story, "w", A0, A1)
    asleep(story, "w")
    story.trained(0)
    story.loaded("w", 1)
    complete(story, "w", NEXT0, NEXT1)
    assert trains(asleep(story, "w")) == [1]
    story.join("trainer", "trainer", version=0)
    assert story.needs_start
    story.ledger.start(SmallPlan(steps=3), 0, [], story.now)
    assert Load("w", 0) in story.drain()
    assert story.loaded("w", 0) == [Assign("w", [A0, A1])]


def test_an_order_to_sleep_that_is_not_followed_is_repeated(story: Story) -> None:
    begin(story, "w")
    assert complete(story, "w", A0, A1) == [Sleep("w")]
    story.ledger.undelivered("w")
    assert story.tick() == [Sleep("w")]
    assert story.tick() == []
    assert story.tick(PATIENCE_S) == [Sleep("w")]
    assert trains(asleep(story, "w")) == [0]


def test_a_refused_step_is_handed_over_again_without_waking_anybody(story: Story) -> None:
    begin(story, "w")
    complete(story, "w", A0, A1)
    asleep(story, "w")
    story.ledger.refused(story.now, "no room")
    assert story.drain() == []
    assert trains(story.tick()) == [0]


def test_an_evaluation_is_generated_before_anybody_sleeps(story: Story) -> None:
    held_out = SampleId(EVAL, "e", 0)
    story.begin(SmallPlan(), evaluation=Evaluation({"test": ["e"]}, 2))
    story.join("w", "rollout", version=-1, asleep=True)
    assert story.loaded("w", 0) == [Assign("w", [held_out, A0, A1])]
    story.join("r", "reward")
    assert complete(story, "w", A0, A1) == []
    assert story.generated("w", held_out, version=0) == [Sleep("w"), ScoreSamples("r", [held_out])]


def test_samples_of_later_steps_wait_in_sleeping_engines_and_are_not_stuck() -> None:
    story = Story(Ledger(Rules(colocate=True, max_staleness=1, stuck_after_s=50, lost_after_s=10_000)))
    story.begin(SmallPlan(steps=3))
    story.join("w", "rollout", version=-1, asleep=True)
    assert story.loaded("w", 0) == [Assign("w", [A0, A1, NEXT0, NEXT1])]
    story.join("r", "reward")
    complete(story, "w", A0, A1)
    asleep(story, "w")
    assert story.tick(100.0) == []
    story.trained(0)
    story.loaded("w", 1)
    assert story.tick(20.0) == [], "the time asleep does not count"
    assert story.state(NEXT0) == "running"


def test_a_step_that_becomes_complete_while_an_engine_wakes_waits_until_it_sleeps_again(story: Story) -> None:
    begin(story, "v")
    assert story.join("w", "rollout", version=-1, asleep=True) == [Load("w", 0)]
    assert complete(story, "v", A0, A1) == [Sleep("v"), Sleep("w")]
    assert trains(asleep(story, "v")) == []
    assert story.loaded("w", 0) == []
    assert trains(asleep(story, "w")) == [0]


def test_a_late_report_of_sleep_does_not_hide_that_an_engine_wakes(story: Story) -> None:
    """It fell asleep before the broker was restarted, and reports that after it has been asked to load."""
    begin(story, "v")
    assert story.join("w", "rollout", version=-1, asleep=True) == [Load("w", 0)]
    assert asleep(story, "w") == []
    assert complete(story, "v", A0, A1) == [Sleep("v"), Sleep("w")]


def test_after_a_restart_of_the_broker_a_step_waits_for_engines_that_have_not_joined_yet() -> None:
    story = Story(Ledger(Rules(colocate=True, lost_after_s=20)))
    story.begin(SmallPlan(), journal=[JournalEntry(id=id, state="scored", reward=1.0) for id in (A0, A1)])
    assert story.join("w", "rollout", asleep=True) == []
    assert story.tick(5) == []
    assert story.join("v", "rollout") == [Sleep("v")], "it may be awake still"
    assert trains(asleep(story, "v")) == []
    assert trains(story.tick(15)) == [0]


def test_after_a_restart_of_the_broker_nobody_is_woken_while_the_trainer_has_the_step() -> None:
    """The journal alone does not show it: by a scorer's part all groups are scored again."""
    story = Story(Ledger(Rules(colocate=True), signal=SignalRule(most=9, metric="math")))
    story.join("trainer", "trainer", training=0)
    journal = [JournalEntry(id=id, state="scored", reward=1.0) for id in (A0, A1)]
    story.ledger.start(SmallPlan(groups=1, prompts=2), 0, journal, story.now)
    assert story.join("w", "rollout", version=-1, asleep=True) == []
    assert story.tick() == []
    story.ledger.handover.training = -1  # it gave the step up
    assert story.tick() == [Load("w", 0)]
