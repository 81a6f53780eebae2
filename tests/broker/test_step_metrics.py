from rhymed.messages import SampleId, Score
from rhymed_broker.metrics import StepMeter, rollout_side


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
