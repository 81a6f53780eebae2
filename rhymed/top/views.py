"""The table of each view: its rows as they are filtered and sorted, its columns, and which row is selected. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rhymed.top import steps, workers
from rhymed.top.state import Look, View
from rhymed.top.table import Column, ordered


class Listing(NamedTuple):
    rows: Sequence[Any]
    columns: Sequence[Column[Any]]
    name: Callable[[Any], str]  # of a row; the same as long as it is the same thing
    empty: str  # what is said where there is no row
    title: str

    def selected(self, look: Look) -> int:
        """Which row it is; the first one where what was selected is not there; -1: there is none."""
        wanted = look.selected.get(look.view)
        found = next((number for number, row in enumerate(self.rows) if self.name(row) == wanted), 0)
        return found if self.rows else -1


TITLES: dict[View, str] = {"workers": "workers", "groups": "groups of open steps", "worker": "samples", "group": ""}


def listing(look: Look) -> Listing:
    """Of the present view; the rows are all there are."""
    column, reverse = look.sorts.get(look.view, ("", False))
    found = _raw(look)
    return found._replace(rows=ordered(found.rows, found.columns, column, reverse))


def sortable(look: Look) -> list[str]:
    """Titles of the columns that the present view can be sorted by."""
    return [column.title for column in _raw(look).columns if column.key is not None]


def _raw(look: Look) -> Listing:
    queues, none = look.queues, f"nothing here has {look.filter!r} in its name" if look.filter else ""
    match look.view:
        case "workers":
            rows: Sequence[Any] = workers.seats(queues, look.history, look.filter) if queues else ()
            return Listing(rows, workers.SEATS, _of_worker, none or "no worker is here", TITLES["workers"])
        case "groups":
            rows = steps.bundles(queues, look.filter) if queues else ()
            more = steps.untold(queues) if queues else 0
            title = f"{TITLES['groups']}{f', and {more:,} more' if more else ''}"
            return Listing(rows, steps.BUNDLES, _name, none or "no step is open", title)
        case "worker":
            row = workers.find(queues.workers, look.worker) if queues else None
            rows = workers.hands(row, look.filter) if row else ()
            return Listing(rows, workers.HANDS, _name, none or "it has no sample", TITLES["worker"])
        case "group":
            rows = steps.members(look.group, look.filter) if look.group else ()
            return Listing(rows, steps.MEMBERS, _index, none or "the step is not open any more", "samples")


def _of_worker(seat: workers.Seat) -> str:
    return seat.row.worker


def _name(row: Any) -> str:
    return str(row.name)


def _index(member: Any) -> str:
    return str(member.index)
