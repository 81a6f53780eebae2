"""How many tokens the policy will write in samples with turns."""

from __future__ import annotations

import pytest

from benchmarks.agents.forecast import errors
from rhymed_broker.forecast import Forecast
from rhymed_broker.turns import TurnForecast

CAP = 1000


def learned(samples: dict[str, list[list[int]]]) -> TurnForecast:
    forecast = TurnForecast(CAP)
    for step in range(4):
        for prompt, turns in samples.items():
            for lengths in turns:
                forecast.finished(step, prompt, sum(lengths), lengths)
        forecast.close(step)
    return forecast


def test_a_prompt_that_always_has_as_many_turns_is_expected_to_have_them() -> None:
    forecast = learned({"two": [[20, 20]] * 8, "five": [[20] * 5] * 8})
    assert forecast.expect(4, "two") == pytest.approx(40, rel=0.2)
    assert forecast.expect(4, "five") == pytest.approx(100, rel=0.2)
    assert forecast.left(4, "five", 40, [20, 20]) == pytest.approx(60, rel=0.2)
    assert forecast.left(4, "five", 50, [20, 20]) == pytest.approx(50, rel=0.2)
    assert forecast.left(4, "two", 30, [20]) == pytest.approx(10, rel=0.5)


def test_a_run_without_history_expects_something() -> None:
    forecast = TurnForecast(CAP)
    assert 1 <= forecast.expect(0, "p") <= CAP
    assert 1 <= forecast.left(0, "p", 5, [3]) <= CAP
    assert 1 <= forecast.left(0, "p", 0) <= CAP


def test_nothing_is_expected_beyond_the_cap() -> None:
    forecast = learned({"long": [[10, 900]] * 8, "short": [[300, 10]] * 8})
    for prompt in ("long", "short", "new"):
        for tokens in (600, CAP - 1, CAP):
            assert forecast.left(4, prompt, tokens, [tokens]) <= CAP - tokens


def test_a_new_prompt_has_what_the_run_had_left_after_such_a_turn() -> None:
    """Whole responses are long, but what comes after the first turn is short."""
    samples = {str(number): [[90 + number, 5]] * 4 + [[20 + number, 5]] * 4 for number in range(16)}
    forecast = learned(samples)
    assert forecast.left(4, "new", 20, [20]) < 0.6 * forecast.left(4, "new", 20)


def test_history_of_earlier_epochs_replaces_what_was_known_of_a_prompt() -> None:
    forecast = TurnForecast(CAP)
    forecast.remember("p", [(0, 40)] * 6, [[20, 20]] * 6)
    forecast.remember("p", [(0, 40)] * 6 + [(1, 110)] * 6, [[20, 20]] * 6 + [[20, 90]] * 6)
    assert forecast.left(2, "p", 20, [20]) > 55
    forecast.remember("p", [(0, 40)] * 6, [[20, 20]] * 6)
    assert forecast.left(2, "p", 20, [20]) < 40


def test_samples_without_tokens_or_turns_of_the_policy_say_nothing() -> None:
    forecast = TurnForecast(CAP)
    forecast.remember("p", [(0, 40), (0, 0)], [[], []])
    forecast.finished(0, "p", 0, [])
    forecast.finished(0, "p", 30, [])
    assert forecast.left(0, "p", 30, [30]) >= 1


def test_where_turns_are_regular_it_errs_less_than_a_forecast_of_whole_responses() -> None:
    """A prompt has the same turns each time, of which one is as long as the policy likes."""
    samples = [
        (step, str(prompt), [10 + 37 * (step + prompt + sample) % 200, *([6] * (prompt % 3 + 1))])
        for step in range(6)
        for prompt in range(12)
        for sample in range(4)
    ]
    whole, turns = errors(samples, Forecast(CAP)), errors(samples, TurnForecast(CAP))
    assert turns < 0.8 * whole
