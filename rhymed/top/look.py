"""What is looked at, and how: the newest snapshot, what came before it, and what the person at the keys has chosen.

Plain data, changed by `control` (keys) and `app` (snapshots), read by `paint`. What is selected is kept by name, so
it stays selected when rows come, go or are sorted anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rhymed.messages import Drain, Group, Pause, Queues
from rhymed.top.history import History

View = Literal["workers", "groups", "worker", "group"]
State = Literal["waiting", "live", "silent", "ended", "finished"]
"""`waiting`: nobody has answered yet; `silent`: somebody did, and does not now; `ended`: the broker is gone."""


@dataclass(frozen=True)
class Link:
    """How it stands with the broker."""

    state: State = "waiting"
    since: float = 0.0  # on the clock that `paint` is given
    address: str = ""


@dataclass(frozen=True)
class Question:
    """What has to be confirmed before it is done."""

    text: tuple[str, ...]
    order: Pause | Drain


@dataclass
class Look:
    queues: Queues | None = None
    history: History = field(default_factory=History)
    link: Link = Link()
    run: str = ""  # what other commands are told to have the same run; empty: they have it anyway
    view: View = "workers"
    trail: list[View] = field(default_factory=list)  # where Esc leads back to
    worker: str = ""  # that is looked into
    prompt: tuple[int, str] = (0, "")  # step and prompt of the group that is looked into
    group: Group | None = None  # as the broker told it last
    past: bool = False  # the group's step is not open any more: `group` is the last picture of it
    sorts: dict[View, tuple[str, bool]] = field(default_factory=dict)  # column, reversed
    selected: dict[View, str] = field(default_factory=dict)
    first: dict[View, int] = field(default_factory=dict)  # row at the top
    filter: str = ""
    typing: bool = False  # the filter is being written
    helping: bool = False
    question: Question | None = None
    note: str = ""  # what came of the last order, or what a key could not do
    wrong: bool = False  # the note is an error

    def say(self, note: str, *, wrong: bool = False) -> None:
        self.note, self.wrong = note, wrong

    def go(self, view: View) -> None:
        """Esc leads back here."""
        self.trail.append(self.view)
        self.view = view

    def back(self) -> None:
        self.view = self.trail.pop() if self.trail else "workers"
