"""One scorer's part of the configuration, with the checks that scorers share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rhymed.config import Dataset, Reward, Scorer
from rhymed.errors import RewardError

EARNED = "environment_reward"
"""Column that the row of a sample with an environment has: the reward that it gave, or None."""


@dataclass(frozen=True)
class Setting:
    scorer: Scorer
    key: str  # in the configuration, e.g. `reward` or `reward.scorers[1]`
    reward: Reward
    datasets: Sequence[Dataset]  # of training and evaluation
    max_response_length: int  # tokens

    def allow_only(self, *known: str) -> None:
        for name in self.scorer.args:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f"did you mean {close[0]}?" if close else f"it takes: {', '.join(known) or 'none'}"
                raise RewardError(f"{self.key}.args: scorer {self.scorer.scorer} has no argument {name!r}; {guess}")

    def require_whole_response(self) -> None:
        if self.scorer.answer != "full":
            raise RewardError(
                f"{self.key}.answer = {self.scorer.answer!r}: scorer {self.scorer.scorer} takes the whole response;"
                " leave answer out, or give each scorer its own in [[reward.scorers]]"
            )

    @property
    def column(self) -> str:
        return str(self.scorer.args.get("column", ""))

    def pattern(self, flags: re.RegexFlag, default: str = "") -> re.Pattern[str]:
        text = self.scorer.args.get("pattern", default)
        if not isinstance(text, str) or not text:
            raise RewardError(f"{self.key}: scorer {self.scorer.scorer} needs args.pattern, e.g. 'Answer: (\\S+)'")
        try:
            return re.compile(text, flags)
        except re.error as error:
            raise RewardError(f"{self.key}.args.pattern: {error}") from None

    def count(self, name: str, default: int) -> int:
        value = self.scorer.args.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RewardError(f"{self.key}.args.{name} = {value!r} must be a positive number of tokens")
        return value
