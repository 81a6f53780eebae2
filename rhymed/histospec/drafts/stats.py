"""What drafting brought and what it cost: per request, and added up."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub


@dataclass
class Account:
    """Times are of steps that only decoded; `plain_s` is what plain decoding had taken for their tokens: for each
    token a step without drafts, as the cost curve says, but none that is longer than the step was. A step that had
    no drafts is its own measure.

    A request's times are its equal share of its steps.
    """

    forwards: int = 0  # steps that decoded it
    drafted: int = 0  # tokens that were verified
    accepted: int = 0
    timed_s: float = 0.0
    plain_s: float = 0.0
    draft_s: float = 0.0  # part of `timed_s`; histories are not in it, they are indexed beside the engine
    carried: int = 0  # tokens that it made before, elsewhere or with other weights
    kept: int = 0  # of these, from the first on, came out again

    def __add__(self, other: Account) -> Account:
        return Account(*map(add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Account) -> Account:
        return Account(*map(sub, vars(self).values(), vars(other).values()))

    def __str__(self) -> str:
        """What it comes to, in words."""
        if not self.forwards:
            return "nothing decoded"
        tokens = f"{1 + self.accepted / self.forwards:.2f} tokens a step and request"
        if self.carried:
            tokens += f", {self.kept / self.carried:.0%} of {self.carried:,} carried tokens came out again"
        if not self.drafted:
            return f"{tokens}, nothing drafted"
        gain = f", about {self.plain_s / self.timed_s:.2f} times as fast as without" if self.timed_s else ""
        return f"{tokens}, {self.accepted / self.drafted:.0%} of {self.drafted:,} drafted tokens accepted{gain}"
