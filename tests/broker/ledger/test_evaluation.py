"""Evaluations: their metrics, and how they run in the ledger next to the training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.messages import EVAL, JournalEntry, SampleId, Score
from rhymed_broker.ledger.actions import Assign, Evaluated, FinishRun, Load, Mark, ScoreSamples
from rhymed_broker.ledger.evaluation import Evaluation, pass_at
from rhymed_broker.states import Sample
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)
X0, X1 = SampleId(EVAL, "x", 0), SampleId(EVAL, "x", 1)
ALONE = Evaluation({"test": ["x"]}, steps=2, every=2, samples=2)


def graded(evaluation: Evaluation, points: dict[tuple[str, int], float | None]) -> dict[str, float]:
    samples = []
    for id in evaluation.ids(0):
        sample = Sample(id)
        sample.points = sample.reward = points[id.prompt, id.index]
        sample.length = 10
        samples.append(sample)
    return evaluation.metrics(samples)


def test_mean_and_pass_at_k_a_dataset() -> None:
    evaluation = Evaluation({"one": ["a", "b"], "other": ["c"]}, steps=1, samples=2, threshold=0.5)
    row = graded(
        evaluation, {("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): 0.4, ("b", 1): 0.0, ("c", 0): 0.5, ("c", 1): 1.0}
    )
    assert row["val/one/acc/mean@2"] == 0.25
    assert row["val/one/acc/pass@1"] == 0.25
    assert row["val/one/acc/pass@2"] == 0.5
    assert row["val/one/reward/mean"] == pytest.approx(0.35)
    assert row["val/other/acc/mean@2"] == row["val/other/acc/pass@2"] == 1.0
    assert row["val/one/prompts"] == 2


def test_what_was_dropped_is_neither_right_nor_wrong() -> None:
    evaluation = Evaluation({"one": ["a", "b"]}, steps=1, samples=2)
    row = graded(evaluation, {("a", 0): 1.0, ("a", 1): None, ("b", 0): None, ("b", 1): None})
    assert row["val/one/acc/mean@2"] == 1.0
    assert (row["val/one/prompts"], row["val/one/dropped"]) == (1, 3)
    nothing = graded(evaluation, dict.fromkeys([("a", 0), ("a", 1), ("b", 0), ("b", 1)]))
    assert nothing == {"val/one/prompts": 0, "val/one/dropped": 4}


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 12))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(size: int, right: int, k: int) -> None:
    from itertools import combinations

    right, k = min(right, size), min(k, size)
    subsets = list(combinations(range(size), k))
    assert pass_at(k, size, right) == pytest.approx(sum(min(one) < right for one in subsets) / len(subsets))


def test_the_first_scorer_decides_where_there_are_several() -> None:
    evaluation = Evaluation({}, steps=1, scorer="math")
    assert evaluation.points(Score(id=X0, reward=0.7, parts={"math": 1.0, "length": -0.3})) == 1.0
    assert evaluation.points(Score(id=X0, reward=0.7)) == 0.7
    assert evaluation.points(Score(id=X0, reward=0.0, error="no", parts={"math": 1.0})) == 0.0, "on_error = zero"


def test_due_at_the_start_every_so_often_and_at_the_end() -> None:
    assert [version for version in range(6) if Evaluation({}, steps=5, every=2).due(version)] == [0, 2, 4, 5]
    assert [version for version in range(6) if Evaluation({}, steps=5, every=3, at_start=False).due(version)] == [
        3,
        5,
    ]
    assert Evaluation({}, steps=0, at_start=False).due(0)


def test_an_evaluation_comes_first_and_its_version_alone_is_asked(story: Story) -> None:
    story.begin(SmallPlan(), evaluation=ALONE)
    story.join("r", "reward")
    assert story.join("w", "rollout", slots=3) == [Assign("w", [X0, X1, A0])]
    assert Assign("w", [A1]) in story.generated("w", A0)
    story.generated("w", A1)
    story.scored("r", A0, A1)
    assert story.trained(0) == [Mark([A0, A1], "trained")]  # no Load: the worker still answers for version 0
    assert Load("w", 1) in story.generated("w", X0, X1, version=0)
    (done,) = story.scored("r", X0, X1)
    assert isinstance(done, Evaluated)
    assert done.version == 0
    assert done.metrics["val/test/acc/mean@2"] == 1.0
    assert story.scored("r", X0) == []  # said twice


def test_the_run_ends_after_its_last_evaluation(story: Story) -> None:
    evaluation = Evaluation({"test": ["x"]}, steps=1, every=9, at_start=False)
    last = SampleId(EVAL + 1, "x", 0)
    story.begin(SmallPlan(steps=1), evaluation=evaluation)
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    story.scored("r", A0, A1)
    assert story.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1)]
    assert story.loaded("w", 1) == [Assign("w", [last])]
    story.generated("w", last, version=1)
    evaluated, finish = story.scored("r", last)
    assert isinstance(evaluated, Evaluated)
    assert isinstance(finish, FinishRun)


def test_without_a_training_step_there_is_only_the_evaluation(story: Story) -> None:
    story.begin(SmallPlan(steps=0), evaluation=Evaluation({"test": ["x"]}, steps=0))
    story.join("r", "reward")
    assert story.join("w", "rollout") == [Assign("w", [X0])]
    story.generated("w", X0, version=0)
    assert [type(action) for action in story.scored("r", X0)] == [Evaluated, FinishRun]


def test_another_worker_with_the_version_takes_over(story: Story) -> None:
    story.begin(SmallPlan(), evaluation=ALONE)
    story.join("w", "rollout", slots=4)
    story.join("v", "rollout", slots=4)
    assert story.ledger.samples.get(X0).worker == "w"
    story.ledger.leave("w", story.now)
    (given,) = story.drain()
    assert (given.worker, given.ids[:2]) == ("v", [X0, X1])


def test_what_nobody_can_sample_any_more_is_dropped_and_the_run_goes_on(story: Story) -> None:
    story.begin(SmallPlan(), evaluation=ALONE)
    story.join("r", "reward")
    story.join("w", "rollout")
    story.generated("w", A0, A1)
    story.scored("r", A0, A1)
    story.trained(0)
    story.ledger.leave("w", story.now)
    actions = story.tick()
    assert Mark([X0, X1], "dropped", "no worker has version 0 any more") in actions
    evaluated = next(action for action in story.drain() + actions if isinstance(action, Evaluated))
    assert evaluated.metrics["val/test/dropped"] == 2


def test_tokens_of_two_versions_are_no_evaluation(story: Story) -> None:
    story.begin(SmallPlan(), evaluation=ALONE)
    story.join("w", "rollout", version=0)
    (mark,) = story.generated("w", X0, version=1)
    assert mark == Mark([X0], "dropped", "mixed: tokens of version 1, allowed are 0 and older")


def test_after_a_restart_what_is_stored_is_only_scored_again(story: Story) -> None:
    journal = [JournalEntry(id=X0, state="scored", length=5, oldest_version=0, reward=0.0)]
    story.join("r", "reward")
    assert ScoreSamples("r", [X0]) in story.begin(SmallPlan(), journal=journal, evaluation=ALONE)
    assert story.state(X1) == "waiting"
