"""What drafting brought and what it cost: per request, and added up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Account:
    """Times are of steps that only decoded; `plain_s` is what the cost curve says they had taken without drafts.

    A request's times are its equal share of its steps.
    """

    forwards: int = 0  # steps that decoded it
    drafted: int = 0  # tokens that were verified
    accepted: int = 0
    timed_s: float = 0.0
    plain_s: float = 0.0
    draft_s: float = 0.0  # part of `timed_s`; histories are not in it, they are indexed beside the engine

    def __add__(self, other: Account) -> Account:
        return Account(
            self.forwards + other.forwards,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.timed_s + other.timed_s,
            self.plain_s + other.plain_s,
            self.draft_s + other.draft_s,
        )

    def __sub__(self, other: Account) -> Account:
        return Account(
            self.forwards - other.forwards,
            self.drafted - other.drafted,
            self.accepted - other.accepted,
            self.timed_s - other.timed_s,
            self.plain_s - other.plain_s,
            self.draft_s - other.draft_s,
        )

    def __str__(self) -> str:
        """What it comes to, in words."""
        if not self.forwards:
            return "nothing decoded"
        tokens = f"{1 + self.accepted / self.forwards:.2f} tokens a step and request"
        if not self.drafted:
            return f"{tokens}, nothing drafted"
        gain = f", about {self.plain_s / self.timed_s:.2f} times as fast as without" if self.timed_s else ""
        return f"{tokens}, {self.accepted / self.drafted:.0%} of {self.drafted:,} drafted tokens accepted{gain}"
