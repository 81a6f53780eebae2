import math
from typing import Any

from rhymed.core.run.metrics import drafting, epochs, learned_nothing, totals


def row(step: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {"step": step, "reward/mean": reward, "timing_s/step": 2.0, "rollout/tokens": 10.0, **more}


def drafts(forwards: float, drafted: float, accepted: float, timed_s: float, saved_s: float) -> dict[str, float]:
    reported = {
        "forwards": forwards,
        "drafted": drafted,
        "accepted": accepted,
        "timed_s": timed_s,
        "saved_s": saved_s,
    }
    return {f"rollout/spec_{name}": value for name, value in {**reported, "draft_s": 0.125}.items()}


def test_the_gain_compares_the_first_and_last_five_steps() -> None:
    numbers = totals([row(step, 0.1 * step) for step in range(20)], 60.0)
    assert round(numbers["reward_first"], 6) == 0.2
    assert round(numbers["reward_last"], 6) == 1.7
    assert numbers["tokens"] == 200


def test_what_is_not_known_is_left_out_of_the_means() -> None:
    numbers = totals([row(0, 0.5), row(1, None), {"step": 2, "rollout/tokens": None}], 1.0)
    assert (numbers["reward_first"], numbers["step_s"], numbers["tokens"]) == (0.5, 2.0, 20.0)
    assert math.isnan(numbers["rollout_s"])


def test_a_step_that_was_found_written_has_no_speed() -> None:
    rows = [row(step, 0.5, **{"rollout/tokens_per_s": speed}) for step, speed in enumerate((0.0, 30.0, 50.0))]
    assert totals(rows, 1.0)["tokens_per_s"] == 40.0


def test_ratios_of_drafting_are_of_the_sums_not_means_of_the_steps() -> None:
    rows = [row(0, 0.0, **drafts(90, 10, 0, 9.0, 0.0)), row(1, 0.0, **drafts(10, 40, 30, 1.0, 2.0)), row(2, 0.0)]
    assert drafting(rows) == {
        "forwards": 100,
        "drafted": 50,
        "accepted": 30,
        "timed_s": 10.0,
        "saved_s": 2.0,
        "draft_s": 0.25,
        "accept_length": 1.3,
        "accept_rate": 0.6,
        "net_speedup": 1.2,
    }


def test_drafting_that_was_not_there_and_drafting_that_did_nothing() -> None:
    assert drafting([row(0, 0.0)]) is None
    idle = drafting([row(0, 0.0, **drafts(5, 0, 0, 0.0, 0.0))])
    assert idle is not None
    assert (idle["accept_length"], idle["accept_rate"], idle["net_speedup"]) == (1.0, None, None)


def test_every_epoch_has_its_means() -> None:
    length, seconds = "response_length/mean", "timing_s/rollout"
    rows = [
        row(0, 0.0, **{"training/epoch": 0.0, length: 20.0, seconds: 4.0}),
        row(1, 0.5, **{"training/epoch": 0.0, length: 10.0, seconds: 1.0}),
        row(2, None, **{"training/epoch": 1.0, length: 8.0, seconds: 2.0}, **drafts(10, 20, 15, 1.0, 0.5)),
    ]
    first, second = epochs([row(-1, 0.0), *rows])  # a row without an epoch
    assert first == {
        "epoch": 0,
        "first_step": 0,
        "steps": 2,
        "reward": 0.25,
        "response_length": 15.0,
        "accept_length": None,
        "accept_rate": None,
        "net_speedup": None,
        "rollout_s": 2.5,
        "tokens_per_s": 4.0,
    }
    assert (second["epoch"], second["first_step"], second["steps"], second["reward"]) == (1, 2, 1, None)
    assert (second["accept_length"], second["accept_rate"], second["net_speedup"]) == (2.5, 0.75, 1.5)


def test_steps_whose_samples_were_all_dropped_taught_nothing() -> None:
    empty = {"rollout/samples": 0.0, "rollout/dropped": 8.0}
    assert learned_nothing([row(0, None, **empty), row(1, None, **empty)])
    assert not learned_nothing([row(0, None, **empty), row(1, 0.5, **{"rollout/samples": 1.0})])
    assert not learned_nothing([row(0, None)])
    assert not learned_nothing([])
