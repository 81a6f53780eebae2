"""Turns `reward.scorer` or `reward.scorers` into functions `(response, row, tokens) -> finite float`.

A name with a colon is a user's function (rhymed_workers.scorers.custom), every other one is built in
(rhymed_workers.scorers.builtin). A scorer that cannot be used raises `RewardError` when it is loaded; one that
returns no finite number raises it then. Neither ever becomes a zero. Where there are several scorers, one may return
None: it does not apply to the sample. Runs in a scoring process; knows nothing of processes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any, Protocol

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed.inputs.rows import Row
from rhymed.text import short
from rhymed_workers.scorers.answer import extract
from rhymed_workers.scorers.builtin import BUILT_IN
from rhymed_workers.scorers.custom import load_function
from rhymed_workers.scorers.setting import Setting


class RewardFunction(Protocol):
    """A loaded scorer. None: it does not apply. Raises `RewardError` or what the user's code raises."""

    def __call__(self, response: str, row: Row, tokens: Sequence[int] = ()) -> float | None: ...


def load_scorers(config: Config) -> dict[str, RewardFunction]:
    """Label to function, in the order of `reward.all`. Raises `RewardError` that names the remedy."""
    return {setting.scorer.label: _load(setting) for setting in _settings(config)}


def _settings(config: Config) -> list[Setting]:
    datasets = (config.data, *config.eval.datasets)
    keys = [f"reward.scorers[{number}]" for number in range(len(config.reward.scorers))] or ["reward"]
    return [
        Setting(scorer, key, config.reward, datasets, config.rollout.max_response_length)
        for scorer, key in zip(config.reward.all, keys, strict=True)
    ]


def _load(setting: Setting) -> RewardFunction:
    name, answer = setting.scorer.scorer, setting.scorer.answer
    if not math.isfinite(setting.scorer.weight):
        raise RewardError(f"{setting.key}.weight = {setting.scorer.weight} must be finite")
    if name in BUILT_IN:
        raw = BUILT_IN[name](setting)
    elif ":" in name:
        name, raw = load_function(name, setting.scorer.args, setting.key)
    else:
        raise RewardError(f"{setting.key}.scorer: {_unknown(name)}")
    optional = len(setting.reward.all) > 1

    def score(response: str, row: Row, tokens: Sequence[int] = ()) -> float | None:
        value = raw(extract(response, answer), row, tokens)
        return None if optional and _unwrap(value, name) is None else finite(value, name)

    vars(score).update({name: text for name in ("note", "warning") if (text := getattr(raw, name, ""))})
    return score


def _unknown(name: str) -> str:
    if name.endswith(".py"):
        return f"{name!r} names no function: write {name}:function"
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    guess = f"did you mean {close[0]}?" if close else f"known: {', '.join(BUILT_IN)}."
    return f"no scorer {name!r}; {guess} Your own is written as file.py:function"


def finite(value: Any, name: str) -> float:
    """A scorer's result as a finite float. Raises `RewardError` that quotes the result."""
    value = _unwrap(value, name)
    if value is None:
        raise RewardError(f"{name} returned None: no reward for this sample (None needs several reward.scorers)")
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"{name} returned {short(value)} ({type(value).__name__}) instead of a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of torch: RuntimeError
        raise RewardError(f"{name} returned {short(value)}, which is not a number: {error}") from None
    if not math.isfinite(number):
        raise RewardError(f"{name} returned {number}: a reward must be finite")
    return number


def _unwrap(value: Any, name: str) -> Any:
    """verl's functions may return a dict with the reward in it."""
    if not isinstance(value, dict):
        return value
    if "score" not in value:
        raise RewardError(f"{name} returned a dict without 'score'; its keys: {', '.join(map(str, value))}")
    return value["score"]
