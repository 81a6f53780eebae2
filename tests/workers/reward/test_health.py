import pytest

from rhymed.core.errors import RewardError
from rhymed_workers.reward.outcome import Outcome
from rhymed_workers.reward.worker import ScorerHealth

FINE = Outcome(reward=1.0, parts={"math": 1.0})
BAD = Outcome(error="math raised ValueError (a.py, line 3)", failed="math")
LATE = Outcome(error="took too long", timeout=True, failed="math")


def judge(health: ScorerHealth, outcome: Outcome, samples: int, prompts: int) -> None:
    for number in range(samples):
        health.count(f"prompt {number % prompts}", outcome)


def test_a_scorer_that_never_worked_is_given_up_with_its_first_error() -> None:
    health = ScorerHealth(group_size=8)
    health.count("prompt 0", LATE)
    with pytest.raises(RewardError, match=r"each of the first 16 samples \(4 prompts\).*math: took too long"):
        judge(health, BAD, 15, prompts=4)


def test_one_success_is_enough_to_go_on() -> None:
    health = ScorerHealth(group_size=8)
    judge(health, BAD, 15, prompts=15)
    health.count("prompt", FINE)
    judge(health, BAD, 1000, prompts=100)


def test_a_few_bad_prompts_do_not_end_it() -> None:
    health = ScorerHealth(group_size=16)
    judge(health, BAD, 48, prompts=3)
    health.count("prompt 4", FINE)
    judge(health, BAD, 48, prompts=3)


def test_where_there_are_few_prompts_their_groups_count() -> None:
    health = ScorerHealth(group_size=16)
    judge(health, BAD, 63, prompts=2)
    with pytest.raises(RewardError, match="first 64 samples"):
        health.count("prompt 1", BAD)


def test_another_scorer_that_works_does_not_hide_it() -> None:
    half = Outcome(error="math broke", failed="math", parts={"format": 1.0})
    with pytest.raises(RewardError, match="the first error: math: math broke"):
        judge(ScorerHealth(group_size=4), half, 16, prompts=4)


def test_samples_that_are_lost_are_no_failures_of_scorers() -> None:
    judge(ScorerHealth(group_size=4), Outcome(error="not in the store", unstored=True), 100, prompts=50)


def test_samples_to_which_no_scorer_applies_are_given_up_too() -> None:
    nothing = Outcome(error="no scorer applies")
    with pytest.raises(RewardError, match=r"scoring failed .*scoring: no scorer applies"):
        judge(ScorerHealth(group_size=4), nothing, 16, prompts=4)
    health = ScorerHealth(group_size=4)
    health.count("prompt 0", FINE)
    judge(health, nothing, 100, prompts=50)


def test_stats() -> None:
    health = ScorerHealth(group_size=4)
    for outcome in (FINE, BAD, LATE):
        health.count("prompt", outcome)
    assert health.stats() == {"reward/scored": 1, "reward/errors": 2, "reward/timeouts": 1, "timing_s/score": 0}
