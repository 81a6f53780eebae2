import pytest

from rhymed.core.messages import Drafting, SampleId, Score
from rhymed_broker.ledger.meter import StepMeter, rollout_side
from rhymed_broker.states import Sample


def score(index: int, **given: object) -> Score:
    return Score(id=SampleId(step=0, prompt="0" * 16, index=index), **given)  # type: ignore[arg-type]


def test_each_scorer_has_its_mean_and_its_rates() -> None:
    meter = StepMeter(0.0, (0.0, 0.0))
    meter.report(score(0, reward=1.5, parts={"math": 1.0, "format": 0.5}))
    meter.report(score(1, reward=0.0, parts={"math": 0.0}))  # format does not apply
    meter.report(score(2, error="boom", failed="format", parts={"math": 1.0}))
    meter.report(score(3, reward=0.0, error="too long", timeout=True, failed="math"))  # on_error = "zero"
    metrics = rollout_side(0, meter, [])
    assert {name: value for name, value in metrics.items() if name.startswith("reward/")} == {
        "reward/error_rate": 0.5,
        "reward/timeout_rate": 0.25,
        "reward/math/mean": 2 / 3,
        "reward/math/error_rate": 0.25,
        "reward/math/timeout_rate": 0.25,
        "reward/format/mean": 0.5,
        "reward/format/error_rate": 0.5,
        "reward/format/timeout_rate": 0.0,
    }


def test_a_scorer_that_only_failed_has_no_mean() -> None:
    meter = StepMeter(0.0, (0.0, 0.0))
    meter.report(score(0, error="boom", failed="math"))
    metrics = rollout_side(0, meter, [])
    assert metrics["reward/math/error_rate"] == 1.0
    assert "reward/math/mean" not in metrics


def test_an_error_that_is_no_scorers_counts_in_the_total_only() -> None:
    meter = StepMeter(0.0, (0.0, 0.0))
    meter.report(score(0, error="not in the store"))
    assert [name for name in rollout_side(0, meter, []) if name.startswith("reward/")] == [
        "reward/error_rate",
        "reward/timeout_rate",
    ]


def sample(index: int, drafting: Drafting | None) -> Sample:
    made = Sample(SampleId(0, "0" * 16, index))
    made.state, made.drafting = "scored", drafting
    return made


def drafting_of(*reported: Drafting | None) -> dict[str, float]:
    metrics = rollout_side(0, StepMeter(0.0, (0.0, 0.0)), [sample(index, one) for index, one in enumerate(reported)])
    return {name: value for name, value in metrics.items() if name.startswith("rollout/spec_")}


def test_drafting_is_added_up_over_the_samples_that_tell_of_it() -> None:
    reported = Drafting(10, 20, 15, 1.0, 2.5, 0.25), Drafting(30, 20, 5, 3.0, 3.5, 0.5)
    assert drafting_of(*reported, None) == {
        "rollout/spec_forwards": 40,
        "rollout/spec_drafted": 40,
        "rollout/spec_accepted": 20,
        "rollout/spec_accept_length": 1.5,
        "rollout/spec_accept_rate": 0.5,
        "rollout/spec_net_speedup": 1.5,
        "rollout/spec_timed_s": 4.0,
        "rollout/spec_saved_s": 2.0,
        "rollout/spec_draft_s": 0.75,
    }


def test_without_drafting_there_is_no_word_of_it() -> None:
    assert drafting_of(None, None) == {}
    dropped = sample(0, Drafting(10, 20, 15, 1.0, 2.5, 0.25))
    dropped.state = "dropped"
    assert not any("spec_" in name for name in rollout_side(0, StepMeter(0.0, (0.0, 0.0)), [dropped]))


@pytest.mark.parametrize(
    ("reported", "absent"),
    [
        (Drafting(0, 0, 0, 0.0, 0.0, 0.0), {"accept_length", "accept_rate", "net_speedup"}),
        (Drafting(5, 0, 0, 1.0, 1.0, 0.0), {"accept_rate"}),
        (Drafting(5, 4, 2, 0.0, 0.0, 0.0), {"net_speedup"}),
    ],
)
def test_a_ratio_of_nothing_is_left_out(reported: Drafting, absent: set[str]) -> None:
    ratios = {"accept_length", "accept_rate", "net_speedup"}
    assert {name for name in ratios if f"rollout/spec_{name}" not in drafting_of(reported)} == absent


def test_samples_that_another_worker_went_on_with_are_counted() -> None:
    samples = [sample(index, None) for index in range(3)]
    samples[1].handovers = 1
    assert rollout_side(0, StepMeter(0.0, (0.0, 0.0)), samples)["rollout/moved"] == 1
