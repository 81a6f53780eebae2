"""The life of a rollout worker's engine, as the broker knows it: a table of states and events.

The broker orders, and the worker reports. An order is given again only when it was given up: it was not delivered, or
not followed within `PATIENCE_S`. Reports may be late, of an order that another one has followed.
"""

from __future__ import annotations

from typing import Literal

State = Literal["awake", "loading", "falling asleep", "asleep", "waking"]
Event = Literal["load", "sleep", "given up", "loaded", "loaded another", "slept"]

TRANSITIONS: tuple[tuple[State, Event, State], ...] = (
    # it is ordered to load a version
    ("awake", "load", "loading"),
    ("loading", "load", "loading"),
    ("falling asleep", "load", "loading"),
    ("asleep", "load", "waking"),
    ("waking", "load", "waking"),
    # it is ordered to free its memory for the trainer
    ("awake", "sleep", "falling asleep"),
    ("loading", "sleep", "falling asleep"),
    ("falling asleep", "sleep", "falling asleep"),
    ("waking", "sleep", "falling asleep"),  # it may be awake before it reports that
    # the order was not delivered, or not followed in time
    ("loading", "given up", "awake"),
    ("falling asleep", "given up", "awake"),
    ("waking", "given up", "waking"),  # it may follow yet: only its report says that it sleeps
    # it reports the version that it was ordered to load, or any while it has no such order
    ("awake", "loaded", "awake"),
    ("loading", "loaded", "awake"),
    ("falling asleep", "loaded", "falling asleep"),  # by the order before
    ("asleep", "loaded", "awake"),  # by an order that was given up
    ("waking", "loaded", "awake"),
    # it reports a version that an earlier order named
    ("loading", "loaded another", "loading"),
    ("waking", "loaded another", "loading"),
    # it reports that its memory is free
    ("awake", "slept", "asleep"),  # ordered before the broker was restarted
    ("loading", "slept", "waking"),  # by the order before: it wakes to load
    ("falling asleep", "slept", "asleep"),
    ("asleep", "slept", "asleep"),
    ("waking", "slept", "waking"),  # by the order before
)
NEXT: dict[tuple[State, Event], State] = {(state, event): after for state, event, after in TRANSITIONS}

WRITES: frozenset[State] = frozenset({"awake", "loading"})
"""It may be given samples."""

PATIENCE_S = 300.0


class Engine:
    def __init__(self, *, asleep: bool) -> None:
        self.state: State = "asleep" if asleep else "awake"
        self.target: int | None = None  # the version that it was ordered to load
        self.ordered_at = 0.0  # when the newest order was given
        self.woken_at = 0.0  # when it last awoke

    def load(self, version: int, now: float) -> None:
        self._do("load")
        self.target, self.ordered_at = version, now

    def sleep(self, now: float) -> bool:
        """Whether the order has to be given: it was not, or long ago."""
        if self.state == "falling asleep" and now - self.ordered_at <= PATIENCE_S:
            return False
        self._do("sleep")
        self.target, self.ordered_at = None, now
        return True

    def give_up(self) -> None:
        """The newest order was not delivered, or not followed in time."""
        if (self.state, "given up") in NEXT:
            self._do("given up")
        self.target = None

    def weights_gone(self) -> None:
        """Those that it was ordered to load are not there any more."""
        if self.target is not None:
            self.give_up()

    def loaded(self, version: int, now: float) -> None:
        if self.state in ("asleep", "waking"):
            self.woken_at = now
        self._do("loaded" if self.target in (None, version) else "loaded another")
        if self.target == version:
            self.target = None

    def slept(self) -> None:
        self._do("slept")

    def late(self, now: float, limit_s: float = PATIENCE_S) -> bool:
        """It was ordered to load a version longer ago than the limit, and has not done so."""
        return self.target is not None and now - self.ordered_at > limit_s

    def _do(self, event: Event) -> None:
        self.state = NEXT[self.state, event]
