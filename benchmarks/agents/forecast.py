"""How far forecasts of the tokens that the policy will write are off, on recorded samples in turns.

They are asked at the begin of each turn of a step, with all steps before it as history. Siblings of the same step say
nothing: in a run they often begin together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.agents.recorded import turns_of
from rhymed_broker.forecast import Forecast
from rhymed_broker.turns import TurnForecast

Past = tuple[int, str, list[int]]  # step, prompt, tokens of each turn of the policy


def run(folder: Path) -> dict[str, Any]:
    """Of a run's folder. Raises `ConfigError` if it has no samples in turns."""
    samples = turns_of(folder)
    cap = max(sum(turns) for _, _, turns in samples)
    return {
        "turns": sum(len(turns) for *_, turns in samples) / len(samples),
        "error_by_response": errors(samples, Forecast(cap)),
        "error_by_turns": errors(samples, TurnForecast(cap)),
    }


def errors(samples: Iterable[Past], forecast: Forecast | TurnForecast) -> float:
    """Mean absolute error over the mean of what was left. `samples`: by step; the first step is history alone."""
    wrong, total, first = 0.0, 0.0, True
    for step, group in groupby(samples, key=itemgetter(0)):
        steps = list(group)
        for _, prompt, turns in () if first else steps:
            for number in range(len(turns)):
                left = sum(turns[number:])
                wrong += abs(_left(forecast, step, prompt, turns[:number]) - left)
                total += left
        for _, prompt, turns in steps:
            forecast.finished(step, prompt, sum(turns), turns)
        forecast.close(step)
        first = False
    return wrong / max(1.0, total)


def _left(forecast: Forecast | TurnForecast, step: int, prompt: str, turns: Sequence[int]) -> float:
    return forecast.left(step, prompt, sum(turns), turns) if turns else forecast.expect(step, prompt)
