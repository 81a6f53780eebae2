"""Turns `reward.scorer` or `reward.scorers` into functions `(response, row, tokens) -> Result`.

A name with a colon is a user's function (rhymed_workers.scorers.custom), every other one is built in
(rhymed_workers.scorers.builtin). A scorer that cannot be used raises `RewardError` when it is loaded; one whose
result cannot be used (rhymed_workers.scorers.result) raises it then. Where there are several scorers, one may return
None: it does not apply to the sample. Runs in a scoring process; knows nothing of processes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Protocol

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed.inputs.rows import Row
from rhymed_workers.scorers.answer import extract
from rhymed_workers.scorers.builtin import BUILT_IN
from rhymed_workers.scorers.custom import load_function
from rhymed_workers.scorers.result import Result, read
from rhymed_workers.scorers.setting import Setting


class RewardFunction(Protocol):
    """A loaded scorer. None: it does not apply. Raises `RewardError` or what the user's code raises."""

    def __call__(self, response: str, row: Row, tokens: Sequence[int] = ()) -> Result | None: ...


def load_scorers(config: Config) -> dict[str, RewardFunction]:
    """Label to function, in the order of `reward.all`. Raises `RewardError` that names the remedy."""
    return {setting.scorer.label: _load(setting) for setting in _settings(config)}


def _settings(config: Config) -> list[Setting]:
    datasets = (*config.data.parts, *config.eval.datasets)
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

    def score(response: str, row: Row, tokens: Sequence[int] = ()) -> Result | None:
        return read(raw(extract(response, answer), row, tokens), name, tokens, optional=optional)

    vars(score).update({name: text for name in ("note", "warning") if (text := getattr(raw, name, ""))})
    return score


def _unknown(name: str) -> str:
    if name.endswith(".py"):
        return f"{name!r} names no function: write {name}:function"
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    guess = f"did you mean {close[0]}?" if close else f"known: {', '.join(BUILT_IN)}."
    return f"no scorer {name!r}; {guess} Your own is written as file.py:function"
