"""Counts what a reward worker has scored, and detects a scorer that never works."""

from __future__ import annotations

from rhymed.errors import RewardError
from rhymed_workers.scoring.verdict import Outcome

MAX_FAILED_SAMPLES = 16
MAX_FAILED_PROMPTS = 4
"""A scorer without one success that failed for so many samples of so many prompts never works.

A dataset with a few bad rows fails whole groups, so samples alone are no evidence. Where a worker sees fewer prompts,
the failures of `MAX_FAILED_PROMPTS` whole groups count as much.
"""


class ScorerHealth:
    """`group_size`: samples per prompt."""

    def __init__(self, group_size: int) -> None:
        self._scored = self._errors = self._timeouts = 0
        self._seconds = 0.0
        self._group_size = group_size
        self._worked: set[str] = set()  # labels of scorers
        self._failures: dict[str, list[tuple[str, str]]] = {}  # label -> (prompt, error), until the first success

    def count(self, outcome: Outcome) -> None:
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

    def check(self, prompt: str, outcome: Outcome) -> None:
        """Raises `RewardError` with the first error once a scorer has failed too often without one success."""
        self._worked |= outcome.parts.keys()
        for label in outcome.parts:
            self._failures.pop(label, None)
        if outcome.error is None:
            self._failures.pop("", None)
            self._worked.add("")
        elif outcome.failed not in self._worked:
            failures = self._failures.setdefault(outcome.failed, [])
            failures.append((prompt, outcome.error))
            self._check_failures(outcome.failed, failures)

    def _check_failures(self, label: str, failures: list[tuple[str, str]]) -> None:
        prompts = len({prompt for prompt, _ in failures})
        enough = prompts >= MAX_FAILED_PROMPTS or len(failures) >= MAX_FAILED_PROMPTS * self._group_size
        if len(failures) >= MAX_FAILED_SAMPLES and enough:
            subject = f"scorer {label}" if label else "scoring"
            raise RewardError(
                f"{subject} failed for each of the first {len(failures)} samples ({prompts} prompts) and never"
                f" worked; the first error: {failures[0][1]}"
            )
