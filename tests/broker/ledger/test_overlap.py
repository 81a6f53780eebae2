"""A trainer receives complete groups while others are generated. Stories: events in, exact actions out."""

from __future__ import annotations

import pytest

from rhymed.core.messages import JournalEntry, SampleId, Score
from rhymed_broker.ledger.actions import Action, Begin, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story

A, B, C = ([SampleId(0, prompt, index) for index in range(2)] for prompt in "abc")
NEXT_A, NEXT_B, NEXT_C = ([SampleId(1, prompt, index) for index in range(2)] for prompt in "abc")


def begin(rules: Rules, signal: SignalRule | None = None, prompts: int = 0) -> Story:
    """Three groups a step, all with one worker."""
    story = Story(Ledger(rules, signal=signal))
    story.begin(SmallPlan(steps=3, groups=3, prompts=prompts))
    story.join("w", "rollout", slots=100)
    story.join("r", "reward", slots=100)
    return story


@pytest.fixture
def story() -> Story:
    return begin(Rules(overlap=True))


def orders(actions: list[Action]) -> list[Begin | Train]:
    return [action for action in actions if isinstance(action, Begin | Train)]


def complete(story: Story, *ids: SampleId) -> list[Begin | Train]:
    story.generated("w", *ids, version=story.ledger.version)
    return orders(story.scored("r", *ids))


def trains(found: list[Begin | Train], step: int, ids: list[SampleId]) -> bool:
    return [(type(one), one.step, one.ids) for one in found] == [(Train, step, ids)]


def test_each_complete_group_is_sent_once_and_the_last_one_with_the_step(story: Story) -> None:
    assert complete(story, C[0]) == []
    assert complete(story, C[1]) == [Begin("trainer", 0, C)]
    assert orders(story.tick()) == []
    assert complete(story, A[0], *B) == [Begin("trainer", 0, B)]
    assert trains(complete(story, A[1]), 0, [*A, *B, *C])
    assert orders(story.trained(0)) == []
    story.loaded("w", 1)
    assert complete(story, *NEXT_B) == [Begin("trainer", 1, NEXT_B)]


def test_groups_that_are_complete_at_once_are_one_order(story: Story) -> None:
    assert complete(story, *B, *A) == [Begin("trainer", 0, [*B, *A])]


def test_without_overlap_the_trainer_receives_whole_steps_only() -> None:
    story = begin(Rules())
    assert complete(story, *A, *B) == []
    assert trains(complete(story, *C), 0, [*A, *B, *C])


def test_another_trainer_receives_all_complete_groups_again(story: Story) -> None:
    complete(story, *A)
    story.ledger.leave("trainer", story.now)
    assert complete(story, *B) == []
    assert orders(story.join("trainer", "trainer", version=0)) == [Begin("trainer", 0, [*A, *B])]
    assert orders(story.tick()) == []


def test_a_trainer_that_refused_the_step_receives_it_whole_again(story: Story) -> None:
    complete(story, *A, *B)
    assert trains(complete(story, *C), 0, [*A, *B, *C])
    story.ledger.refused(story.now, "cannot read it")
    assert orders(story.drain()) == []
    assert trains(orders(story.tick()), 0, [*A, *B, *C])


def test_a_busy_trainer_receives_the_next_steps_groups_when_it_has_trained() -> None:
    story = begin(Rules(max_staleness=1, overlap=True))
    complete(story, *A, *B)
    assert trains(complete(story, *C), 0, [*A, *B, *C])
    assert complete(story, *NEXT_B) == []
    assert complete(story, *NEXT_C) == []
    assert orders(story.trained(0)) == [], "the worker loads the new weights"
    assert orders(story.loaded("w", 1)) == [Begin("trainer", 1, [*NEXT_B, *NEXT_C])]


def test_dropped_samples_are_left_out(story: Story) -> None:
    story.generated("w", *A)
    assert orders(story.scored("r", A[0])) == []
    found = []
    for _ in range(story.ledger.rules.max_retries + 1):
        found += orders(story.scored("r", A[1], error="broken"))
    assert story.state(A[1]) == "dropped"
    assert found == [Begin("trainer", 0, [A[0]])]


def test_groups_without_signal_may_be_replaced_and_are_not_sent() -> None:
    story = begin(Rules(overlap=True), SignalRule(most=1), prompts=8)
    story.generated("w", *A, *B)
    rewards = {A[0]: 1.0, A[1]: 1.0, B[0]: 0.0, B[1]: 1.0}
    story.ledger.scored("r", [Score(id=id, reward=reward) for id, reward in rewards.items()], story.now)
    assert orders(story.drain()) == [Begin("trainer", 0, B)]
    assert {story.state(id) for id in A} == {"filtered"}


def test_what_a_restarted_broker_finds_in_the_journal_is_sent() -> None:
    story = Story(Ledger(Rules(overlap=True)))
    journal = [JournalEntry(id=id, state="scored", reward=1.0) for id in [*A, B[0]]]
    assert orders(story.begin(SmallPlan(steps=3, groups=3), journal=journal)) == [Begin("trainer", 0, A)]


def test_a_paused_run_sends_nothing(story: Story) -> None:
    story.generated("w", *A)
    story.ledger.pause_run(True, story.now)
    assert orders(story.scored("r", *A)) == []
    story.ledger.pause_run(False, story.now)
    assert orders(story.drain()) == [Begin("trainer", 0, A)]
