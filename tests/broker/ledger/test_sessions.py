"""Samples in turns: environment workers answer, rollout workers write, and any of them may be lost."""

from __future__ import annotations

import msgspec
import pytest

from rhymed.messages import Drafting, JournalEntry, SampleId
from rhymed_broker.ledger.actions import Act, Action, Assign, ScoreSamples
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story, info

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)
DRAFTING = Drafting(forwards=2, drafted=3, accepted=1, timed_s=1.0, plain_s=2.0, draft_s=0.5)


class Turns(Story):
    def answered(self, name: str, *ids: SampleId) -> list[Action]:
        self.ledger.holdings.answered(name, ids, self.now)
        return self.drain()

    def turned(self, name: str, *ids: SampleId, drafting: Drafting | None = None) -> list[Action]:
        self.ledger.holdings.turned(name, [info(id, drafting=drafting) for id in ids], self.now)
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


def test_a_turn_is_best_written_where_the_last_one_was(story: Turns) -> None:
    story.begin(SmallPlan())
    story.join("environment-0", "environment")
    story.join("w1", "rollout")
    assert story.answered("environment-0", A0, A1) == [Assign("w1", [A0, A1], (A0, A1))]
    story.join("w2", "rollout")
    story.turned("w1", A0, A1)
    assert story.answered("environment-0", A1) == [Assign("w1", [A1], (A1,))]
    story.ledger.leave("w1", story.now)
    assert story.answered("environment-0", A0) == [Assign("w2", [A1, A0], (A1, A0))] or story.state(A0) == "running"


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
