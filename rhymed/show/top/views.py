"""The table of each view: its filtered and sorted rows, its columns, and the selected row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rhymed.show.top import steps, workers
from rhymed.show.top.state import UiState, View
from rhymed.show.top.table import Column, ordered


class Listing(NamedTuple):
    rows: Sequence[Any]
    columns: Sequence[Column[Any]]
    name: Callable[[Any], str]  # of a row; stable between snapshots
    empty: str  # shown if there is no row
    title: str

    def selected(self, ui: UiState) -> int:
        """Index of the selected row; 0 if it is gone, -1 if there are no rows."""
        wanted = ui.selected.get(ui.view)
        index = next((number for number, row in enumerate(self.rows) if self.name(row) == wanted), 0)
        return index if self.rows else -1


TITLES: dict[View, str] = {"workers": "workers", "groups": "groups of open steps", "worker": "samples", "group": ""}


def listing(ui: UiState) -> Listing:
    column, reverse = ui.sorts.get(ui.view, ("", False))
    table = _unsorted(ui)
    return table._replace(rows=ordered(table.rows, table.columns, column, reverse))


def sortable(ui: UiState) -> list[str]:
    """Titles of the columns that the present view can be sorted by."""
    return [column.title for column in _unsorted(ui).columns if column.key is not None]


def _unsorted(ui: UiState) -> Listing:
    queues, none = ui.queues, f"nothing matches {ui.filter!r}" if ui.filter else ""
    match ui.view:
        case "workers":
            rows: Sequence[Any] = workers.worker_entries(queues, ui.history, ui.filter) if queues else ()
            return Listing(
                rows,
                workers.WORKER_COLUMNS,
                lambda entry: entry.row.worker,
                none or "no worker has joined",
                TITLES["workers"],
            )
        case "groups":
            rows = steps.group_entries(queues, ui.filter) if queues else ()
            more = steps.unlisted(queues) if queues else 0
            title = f"{TITLES['groups']}{f', and {more:,} more' if more else ''}"
            return Listing(rows, steps.group_columns(queues), _name, none or "no step is open", title)
        case "worker":
            row = workers.find(queues.workers, ui.worker) if queues else None
            rows = workers.held_samples(row, ui.filter) if row else ()
            return Listing(rows, workers.SAMPLE_COLUMNS, _name, none or "it holds no samples", TITLES["worker"])
        case "group":
            rows = steps.members(ui.group, ui.filter) if ui.group else ()
            return Listing(rows, steps.MEMBER_COLUMNS, _index, none or "the step is no longer open", "samples")


def _name(row: Any) -> str:
    return str(row.name)


def _index(member: Any) -> str:
    return str(member.index)
