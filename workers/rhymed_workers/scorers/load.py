"""From `reward.scorer` or `reward.scorers` to functions `(response, row, tokens) -> finite float`.

A name with a colon is the user's own (rhymed_workers.scorers.custom), any other one is built in (rhymed_workers.scorers.builtin). A
scorer that cannot be used raises `RewardError` when it is loaded, and one that answers with no finite number raises
it then. Neither ever becomes a zero. Only one of several scorers may answer None: it does not apply to the sample.

Runs in a scoring subprocess (rhymed_workers.reward.pool), which bounds its time; it knows nothing of processes itself.
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
    """What a scorer is loaded as. None: it does not apply. Raises `RewardError` or what the user's code raises."""

    def __call__(self, response: str, row: Row, tokens: Sequence[int] = ()) -> float | None: ...


def load_scorers(config: Config) -> dict[str, RewardFunction]:
    """Label to function, in the order of `reward.all`. Raises `RewardError` that says what to do."""
    return {setting.scorer.label: _load(setting) for setting in _settings(config)}


def _settings(config: Config) -> list[Setting]:
    several = bool(config.reward.scorers)
    return [
        Setting(config, scorer, f"reward.scorers[{number}]" if several else "reward")
        for number, scorer in enumerate(config.reward.all)
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
    optional = len(setting.config.reward.all) > 1

    def score(response: str, row: Row, tokens: Sequence[int] = ()) -> float | None:
        value = raw(extract(response, answer), row, tokens)
        return None if optional and _given(value, name) is None else finite(value, name)

    vars(score).update({name: text for name in ("note", "warning") if (text := getattr(raw, name, ""))})
    return score


def _unknown(name: str) -> str:
    if name.endswith(".py"):
        return f"{name!r} names no function: write {name}:function"
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    guess = f"did you mean {close[0]}?" if close else f"known: {', '.join(BUILT_IN)}."
    return f"no scorer {name!r}; {guess} Your own is written as file.py:function"


def finite(value: Any, name: str) -> float:
    """The reward that a scorer meant; what is none is an error that says what came."""
    value = _given(value, name)
    if value is None:
        raise RewardError(f"{name} returned None: no reward for this sample (None needs several reward.scorers)")
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"{name} returned {short(value)} ({type(value).__name__}) where a number is due")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of torch: RuntimeError
        raise RewardError(f"{name} returned {short(value)}, which is no number: {error}") from None
    if not math.isfinite(number):
        raise RewardError(f"{name} returned {number}: a reward must be finite")
    return number


def _given(value: Any, name: str) -> Any:
    """What verl's functions may wrap in a dict."""
    if not isinstance(value, dict):
        return value
    if "score" not in value:
        raise RewardError(f"{name} returned a dict without 'score'; its keys: {', '.join(map(str, value))}")
    return value["score"]
