from rhymed.core.config import Scorer
from rhymed_workers.reward.outcome import Outcome, combine
from rhymed_workers.reward.scorers.result import Verdict

SCORERS = [Scorer(scorer="math", weight=2.0), Scorer(scorer="format", weight=0.5), Scorer(scorer="judge.py:rate")]


def test_the_reward_is_the_weighted_sum_of_the_parts() -> None:
    verdicts = [
        Verdict(label="math", reward=1.0, seconds=1),
        Verdict(label="format", reward=1.0, seconds=2),
        Verdict(label="rate", reward=-0.25, seconds=4),
    ]
    parts = {"math": 1.0, "format": 1.0, "rate": -0.25}
    assert combine(SCORERS, verdicts) == Outcome(reward=2.25, seconds=7, parts=parts)


def test_what_a_scorer_names_is_shown_and_counts_nowhere() -> None:
    alone = combine(SCORERS[2:], [Verdict(label="rate", reward=1.0)])
    assert alone.kept(["rate"], 1.0) == {}, "the reward is all there is"
    named = combine(SCORERS[2:], [Verdict(label="rate", reward=1.0, named={"tone": 0.25})])
    assert (named.reward, named.parts) == (1.0, {"rate": 1.0})
    assert named.kept(["rate"], 1.0) == {"rate": 1.0, "rate/tone": 0.25}
    weighted = combine(SCORERS[:1], [Verdict(label="math", reward=1.0)])
    assert (weighted.reward, weighted.kept(["math"], 2.0)) == (2.0, {"math": 1.0})


def test_of_several_scorers_every_part_is_kept_and_of_an_error_that_is_0_none_but_0() -> None:
    labels = ["math", "format", "rate"]
    only = combine(SCORERS, [Verdict(label="math"), Verdict(label="format"), Verdict(label="rate", reward=0.5)])
    assert (only.reward, only.kept(labels, 0.5)) == (0.5, {"rate": 0.5}), "the others do not apply"
    failed = combine(SCORERS, [Verdict(label="math", reward=1.0), Verdict(label="format", error="no")])
    assert failed.kept(labels, 0.0) == {"math": 0.0, "format": 0.0, "rate": 0.0}
    assert combine(SCORERS[:1], [Verdict(label="math", error="no")]).kept(labels[:1], 0.0) == {}


def test_a_scorer_that_does_not_apply_has_no_part() -> None:
    verdicts = [Verdict(label="math"), Verdict(label="format", reward=1.0), Verdict(label="rate")]
    assert combine(SCORERS, verdicts) == Outcome(reward=0.5, parts={"format": 1.0})


def test_a_sample_to_which_none_applies_is_an_error_that_says_so() -> None:
    outcome = combine(SCORERS, [Verdict(label="math"), Verdict(label="format"), Verdict(label="rate")])
    assert (outcome.reward, outcome.failed) == (None, "")
    assert "no scorer applies to this sample: math, format, rate returned None" in str(outcome.error)


def test_one_scorers_error_is_the_samples_and_keeps_the_parts() -> None:
    late = Verdict(label="format", error="took too long", timeout=True)
    outcome = combine(SCORERS, [Verdict(label="math", reward=1.0), late])
    assert outcome == Outcome(error="took too long", timeout=True, parts={"math": 1.0}, failed="format")


def test_a_sum_that_overflows_is_an_error() -> None:
    outcome = combine(SCORERS, [Verdict(label="math", reward=1.7e308)])
    assert outcome.reward is None
    assert "too large" in str(outcome.error)
