"""For how long a run has been working, and how long the rest will take, from its timeline.

Owns both numbers for every screen and page. `Progress` is pure but for `read` and `read_end`, which add what is new
in a file.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rhymed.run import timeline
from rhymed.run.timeline import Event, Timeline
from rhymed.text import clock, duration

RECENT = 20  # steps whose mean time is the forecast: enough to include evaluations
PAUSE_S = 60.0  # a longer time without a record was a pause between two parts of a resumed run
END_BYTES = 1 << 20  # of a timeline: at least the newest steps of a few workers, and a few milliseconds to read
LATE_S = 5.0  # a record may be written this much later than one with a later time


class Times(NamedTuple):
    elapsed_s: float  # without the pauses of a run that was resumed
    eta_s: float | None  # until the last step is trained; None: not known, overdue, or nothing is left

    @property
    def phrase(self) -> str:
        """`3:20 elapsed, about 12 min left`."""
        return f"{clock(self.elapsed_s)} elapsed" + (f", {left}" if (left := self.left) else "")

    @property
    def left(self) -> str:
        """`about 12 min left`; empty: not known."""
        return "" if self.eta_s is None else f"about {duration(_rounded(self.eta_s))} left"


class Progress:
    """Records may be added twice, and slightly out of order."""

    def __init__(self) -> None:
        self._elapsed, self._last = 0.0, 0.0
        self._marks: dict[float, tuple[int, bool]] = {}  # time -> steps trained by then, and whether one just was
        self._is_over = False

    def read(self, folder: Path) -> None:
        """Adds what the timeline in this folder has gained since the last call. Blocking."""
        self.add(timeline.read(folder, self._seen))

    def read_end(self, folder: Path) -> None:
        """As `read`, with little to wait for: the time that is left can be known, the time that has passed not."""
        self.add(timeline.read(folder, self._seen, END_BYTES))

    @property
    def _seen(self) -> float:
        return max(0.0, self._last - LATE_S)

    def add(self, line: Timeline) -> None:
        for event in line.events:
            self._mark(event)
        for time in sorted(row.t for rows in line for row in rows):
            if time > self._last:
                self._elapsed += self._since_last(time)
                self._last = time

    def times(self, steps: int | None, now: float = 0.0) -> Times:
        """`steps`: of the whole run; None: unknown. `now`: seconds since 1970; 0: the run is not alive."""
        open_s = 0.0 if self._is_over else self._since_last(now)  # of a finished run nothing is added
        return Times(self._elapsed + open_s, self._eta(steps, now) if steps and now else None)

    def _since_last(self, time: float) -> float:
        """Seconds of work from the last record until this time."""
        return time - self._last if 0.0 < self._last < time <= self._last + PAUSE_S else 0.0

    def _mark(self, event: Event) -> None:
        if event.event == "begun" and event.step is not None:
            self._marks[event.t] = event.step, False
        elif event.event == "trained" and event.step is not None:
            self._marks[event.t] = event.step + 1, True
        if event.event in ("begun", "finished") and event.t > self._last:
            self._is_over = event.event == "finished"
        for time in sorted(self._marks)[: -2 * RECENT]:
            del self._marks[time]

    def _eta(self, steps: int, now: float) -> float | None:
        """The mean time of the newest steps, for each step that is left. The first one after a start warms up."""
        marks = sorted((time, *mark) for time, mark in self._marks.items())
        between = [
            (after - before) / (done - done_before)
            for (before, done_before, trained_before), (after, done, trained) in pairwise(marks)
            if trained_before and trained and done > done_before
        ]
        if self._is_over or not between or (left := steps - marks[-1][1]) <= 0:
            return None
        step_s = fmean(between[-RECENT:])
        rest = left * step_s - min(step_s, max(0.0, now - marks[-1][0]))
        return rest if rest > 0 else None  # the last step takes longer than expected


def _rounded(seconds: float) -> float:
    """To 5 s below two minutes, so that the text does not change with every look."""
    return max(5.0, 5.0 * round(seconds / 5)) if seconds < 120 else seconds
