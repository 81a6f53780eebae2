"""Turns `reward.scorer` or `reward.scorers` into functions of responses.

A name with a colon is a user's function (`custom.py`), every other one is built in (`builtin.py`). A scorer that
cannot be used raises `RewardError` when it is loaded; one whose result cannot be used (`result.py`) raises it then.
Where there are several scorers, one may return None: it does not apply to the sample. Runs in a scoring process;
knows nothing of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import RewardError
from rhymed.inputs.rows import Row
from rhymed_workers.reward.scorers.answer import extract
from rhymed_workers.reward.scorers.builtin import BUILT_IN, Raw
from rhymed_workers.reward.scorers.custom import Custom, load_function
from rhymed_workers.reward.scorers.result import Verdict, read
from rhymed_workers.reward.scorers.setting import Response, Setting

if TYPE_CHECKING:
    from rhymed.core.config import Config


class RewardFunction:
    """A loaded scorer.

    `whole`: it scores all samples of a group in one call. `note`, `warning`: what it reports about itself.
    """

    def __init__(self, setting: Setting, function: Raw | Custom, *, optional: bool) -> None:
        self._setting, self._function, self._optional = setting, function, optional
        self._name = function.title if isinstance(function, Custom) else setting.scorer.scorer
        self.whole = isinstance(function, Custom) and function.whole
        self.note, self.warning = (str(getattr(function, name, "")) for name in ("note", "warning"))

    def __call__(self, response: str, row: Row, tokens: Sequence[int] = ()) -> Verdict | None:
        """None: it does not apply. Raises `RewardError` or what a built-in scorer raises."""
        (result,) = self.score([Response(response, row, tokens, turn_ends=[max(0, len(tokens) - 1)])])
        if isinstance(result, RewardError):
            raise result
        return result

    def score(self, responses: Sequence[Response]) -> list[Verdict | RewardError | None]:
        """Results of one sample, or of all samples of a group. An error in one result is that sample's; others are
        raised."""
        responses = [each._replace(text=extract(each.text, self._setting.scorer.answer)) for each in responses]
        if isinstance(self._function, Custom):
            values = self._function.score(responses)
        else:
            values = [self._function(each.text, each.row, each.tokens) for each in responses]
        return [self._read(value, each) for value, each in zip(values, responses, strict=True)]

    def _read(self, value: Any, response: Response) -> Verdict | RewardError | None:
        try:
            return read(value, self._name, response.tokens, response.turn_ends, optional=self._optional)
        except RewardError as error:
            return error


def load_scorers(config: Config) -> dict[str, RewardFunction]:
    """Label to function, in the order of `reward.all`. Raises `RewardError` that names the remedy."""
    return {setting.label: load_scorer(setting) for setting in settings_of(config)}


def settings_of(config: Config) -> list[Setting]:
    """In the order of `reward.all`."""
    datasets = (*config.data.parts, *config.eval.datasets)
    keys = [f"reward.scorers[{number}]" for number in range(len(config.reward.scorers))] or ["reward"]
    longest, steps = config.rollout.max_response_length, config.trainer.steps or 0
    shared = (config.reward, datasets, longest, steps, bool(config.environment.factory), len(keys) > 1)
    return [Setting(one, one.label, key, *shared) for one, key in zip(config.reward.all, keys, strict=True)]


def load_scorer(setting: Setting) -> RewardFunction:
    """Raises `RewardError` that names the remedy."""
    name = setting.scorer.scorer
    if not math.isfinite(setting.scorer.weight):
        raise RewardError(f"{setting.key}.weight = {setting.scorer.weight} must be finite")
    if name in BUILT_IN:
        function: Raw | Custom = BUILT_IN[name](setting)
    elif ":" in name:
        function = load_function(setting)
    else:
        raise RewardError(f"{setting.key}.scorer: {_unknown(name)}")
    return RewardFunction(setting, function, optional=setting.several)


def _unknown(name: str) -> str:
    if name.endswith(".py"):
        return f"{name!r} names no function: write {name}:function"
    return f"no scorer {name!r}; known: {', '.join(BUILT_IN)}. Your own is written as file.py:function"
