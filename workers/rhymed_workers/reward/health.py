"""What a reward worker has counted since it started, and when it knows that a scorer never works."""

from __future__ import annotations

from rhymed.errors import RewardError
from rhymed_workers.scoring.verdict import Outcome

HOPELESS_SAMPLES = 16
HOPELESS_PROMPTS = 4
"""Without one success before: a scorer that failed for so many samples of so many prompts is no good.

A dataset with a few bad rows fails whole groups, so samples alone would tell nothing. Where a worker sees fewer
prompts, `HOPELESS_PROMPTS` groups' worth of failures count as much.
"""


class Tally:
    """`group_size`: samples a prompt."""

    def __init__(self, group_size: int) -> None:
        self._scored = self._errors = self._timeouts = 0
        self._seconds = 0.0
        self._group_size = group_size
        self._worked: set[str] = set()  # labels of scorers
        self._failures: dict[str, list[tuple[str, str]]] = {}  # label -> (prompt, error), until the first success

    def add(self, outcome: Outcome) -> None:
        self._scored += outcome.error is None
        self._errors += outcome.error is not None
        self._timeouts += outcome.timeout
        self._seconds += outcome.seconds

    def stats(self) -> dict[str, float]:
        return {
            "reward/scored": float(self._scored),
            "reward/errors": float(self._errors),
            "reward/timeouts": float(self._timeouts),
            "timing_s/score": self._seconds / max(1, self._scored + self._errors),
        }

    def judge(self, prompt: str, outcome: Outcome) -> None:
        """Raises `RewardError` with the first error once a scorer has failed too often to be worth going on."""
        self._worked |= outcome.parts.keys()
        for label in outcome.parts:
            self._failures.pop(label, None)
        if outcome.error is None:
            self._failures.pop("", None)
            self._worked.add("")
        elif outcome.failed not in self._worked:
            failures = self._failures.setdefault(outcome.failed, [])
            failures.append((prompt, outcome.error))
            self._give_up(outcome.failed, failures)

    def _give_up(self, label: str, failures: list[tuple[str, str]]) -> None:
        prompts = len({prompt for prompt, _ in failures})
        several = prompts >= HOPELESS_PROMPTS or len(failures) >= HOPELESS_PROMPTS * self._group_size
        if len(failures) >= HOPELESS_SAMPLES and several:
            who = f"scorer {label}" if label else "scoring"
            raise RewardError(
                f"{who} failed for each of the first {len(failures)} samples ({prompts} prompts) and never worked;"
                f" the first error: {failures[0][1]}"
            )
