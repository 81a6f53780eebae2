"""Which steps the drafter lets pass without looking for drafts. Pure: times come in.

Looking costs half a millisecond and more, in steps that may take ten. While drafting pauses, and where nothing was
worth verifying for many steps in a row, most steps are let pass; what they made is taken in at the next look.
"""

from __future__ import annotations

import statistics


class Doze:
    LONGEST = 15  # steps between two looks
    AFTER = 8  # looks in a row that found nothing, for each step that is let pass between two more

    def __init__(self) -> None:
        self.passed = 0  # steps since the last look
        self.first: list[int] = []  # tokens that the first of them made, one per request
        self._left = self._barren = 0
        self._seconds: list[float] = []  # of the measured ones

    @property
    def asleep(self) -> bool:
        """Whether the next step may pass."""
        return self._left > 0

    def look(self, barren: bool, pause: int = 0) -> None:
        """After a look. `barren`: nothing was worth verifying. `pause`: steps for which drafting pauses."""
        self._barren = self._barren + 1 if barren else 0
        self._left = min(self.LONGEST, pause or self._barren // self.AFTER)

    def wake(self) -> None:
        """The next step is looked at."""
        self._left = 0

    def let_pass(self, seconds: float | None) -> None:
        """A step that verified nothing. `seconds`: None if it was not measured."""
        self._left -= 1
        self.passed += 1
        if seconds is not None:
            self._seconds.append(seconds)

    def take(self) -> tuple[int, float, float]:
        """(steps that passed since the last look, seconds of all that were measured, of the middle one; 0: none)."""
        passed, seconds = self.passed, self._seconds
        self.passed, self._seconds = 0, []
        return passed, sum(seconds), statistics.median(seconds) if seconds else 0.0
