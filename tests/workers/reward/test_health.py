import pytest

from rhymed.errors import RewardError
from rhymed_workers.reward.health import Tally
from rhymed_workers.scoring.verdict import Outcome

FINE = Outcome(reward=1.0, parts={"math": 1.0})
BAD = Outcome(error="math raised ValueError (a.py, line 3)", failed="math")
LATE = Outcome(error="took too long", timeout=True, failed="math")


def judge(tally: Tally, outcome: Outcome, samples: int, prompts: int) -> None:
    for number in range(samples):
        tally.judge(f"prompt {number % prompts}", outcome)


def test_a_scorer_that_never_worked_is_given_up_with_its_first_error() -> None:
    tally = Tally(group_size=8)
    tally.judge("prompt 0", LATE)
    with pytest.raises(RewardError, match=r"scorer math failed for each of the first 16 samples \(4 prompts\).*long"):
        judge(tally, BAD, 15, prompts=4)


def test_one_success_is_enough_to_go_on() -> None:
    tally = Tally(group_size=8)
    judge(tally, BAD, 15, prompts=15)
    tally.judge("prompt", FINE)
    judge(tally, BAD, 1000, prompts=100)


def test_a_few_bad_prompts_do_not_end_it() -> None:
    tally = Tally(group_size=16)
    judge(tally, BAD, 48, prompts=3)
    tally.judge("prompt 4", FINE)
    judge(tally, BAD, 48, prompts=3)


def test_where_there_are_few_prompts_their_groups_count() -> None:
    tally = Tally(group_size=16)
    judge(tally, BAD, 63, prompts=2)
    with pytest.raises(RewardError, match="first 64 samples"):
        tally.judge("prompt 1", BAD)


def test_another_scorer_that_works_does_not_hide_it() -> None:
    half = Outcome(error="math broke", failed="math", parts={"format": 1.0})
    with pytest.raises(RewardError, match="scorer math failed"):
        judge(Tally(group_size=4), half, 16, prompts=4)


def test_samples_to_which_no_scorer_applies_are_given_up_too() -> None:
    nothing = Outcome(error="no scorer applies")
    with pytest.raises(RewardError, match=r"scoring failed .*: no scorer applies"):
        judge(Tally(group_size=4), nothing, 16, prompts=4)
    tally = Tally(group_size=4)
    tally.judge("prompt 0", FINE)
    judge(tally, nothing, 100, prompts=50)


def test_stats() -> None:
    tally = Tally(group_size=4)
    for outcome in (FINE, BAD, LATE):
        tally.add(outcome)
    assert tally.stats() == {"reward/scored": 1, "reward/errors": 2, "reward/timeouts": 1, "timing_s/score": 0}
