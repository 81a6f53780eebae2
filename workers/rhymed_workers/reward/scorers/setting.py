"""One scorer's part of the configuration, with the checks that scorers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rhymed.core.errors import RewardError
from rhymed.inputs.rows import Row

if TYPE_CHECKING:
    from rhymed.core.config import Dataset, Reward, Scorer

EARNED = "environment_reward"
"""Column that the row of a sample with an environment has: the reward that it gave, or None."""
TURN_REWARDS = "environment_turn_rewards"
"""Column: what of this each turn earned; None where that is not known."""
TRANSCRIPT, TURNS = "environment_transcript", "environment_turns"
"""Keys of a row: the whole response as text, environment included, and the number of turns."""
MESSAGES, STATE = "environment_messages", "environment_state"
"""Keys of a row: the response as messages, calls and results included, and the environment's public attributes."""


class Response(NamedTuple):
    """A response to score."""

    text: str  # without special tokens; of a sample in turns, the last one
    row: Row
    tokens: Sequence[int] = ()  # of the whole response
    step: int = 0  # steps that were trained before its own
    turn_ends: Sequence[int] = ()  # the last token of each turn of the policy


@dataclass(frozen=True)
class Setting:
    """Its sections are those of the configuration or, in a jail, have their fields alone (`sandbox.plain`)."""

    scorer: Scorer
    label: str  # of the scorer, in metrics
    key: str  # in the configuration, e.g. `reward` or `reward.scorers[1]`
    reward: Reward
    datasets: Sequence[Dataset]  # of training and evaluation
    max_response_length: int  # tokens
    steps: int = 0  # of the run; 0: its plan decides
    environments: bool = False  # a sample has an object, whose attributes a function may read
    several: bool = False  # it is one of several scorers

    def shared(self) -> dict[str, Any]:
        """The same for all scorers of a configuration, but for its sections."""
        names = ("max_response_length", "steps", "environments", "several")
        return {name: getattr(self, name) for name in names}

    def allow_only(self, *known: str) -> None:
        for name in self.scorer.args:
            if name not in known:
                raise RewardError(
                    f"{self.key}.args: scorer {self.scorer.scorer} has no argument {name!r}; it takes:"
                    f" {', '.join(known) or 'none'}"
                )

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
