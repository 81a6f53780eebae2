"""Gain and cost of drafting: per request, and summed."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub


@dataclass
class Account:
    """Times are of steps between which the engine was not idle; a request gets an equal share of each of its steps.

    `plain_s` estimates plain decoding of the same tokens: one step without drafts for each token, as long as the cost
    curve predicts, but not longer than the real step. A step without drafts counts as it is, and what a step did for
    prompts counts in both: where requests come and go, it is a part of the time that drafts do not shorten.
    """

    forwards: int = 0  # steps that decoded it
    drafted: int = 0  # tokens that were verified
    accepted: int = 0
    timed_s: float = 0.0
    plain_s: float = 0.0
    draft_s: float = 0.0  # part of `timed_s`; without indexing histories, which another thread does
    carried: int = 0  # tokens that were made before, in another engine or with other weights
    kept: int = 0  # of these, sampled again before the first difference

    def __add__(self, other: Account) -> Account:
        return Account(*map(add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Account) -> Account:
        return Account(*map(sub, vars(self).values(), vars(other).values()))

    def __str__(self) -> str:
        if not self.forwards:
            return "nothing decoded"
        tokens = f"{1 + self.accepted / self.forwards:.2f} tokens per step and request"
        if self.carried:
            tokens += f", {self.kept / self.carried:.0%} of {self.carried:,} carried tokens kept"
        if not self.drafted:
            return f"{tokens}, nothing drafted"
        gain = f", about {self.plain_s / self.timed_s:.2f} times as fast as without" if self.timed_s else ""
        return f"{tokens}, {self.accepted / self.drafted:.0%} of {self.drafted:,} drafted tokens accepted{gain}"
