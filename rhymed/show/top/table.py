"""A table in a window of lines: which columns fit, which rows are visible, in which order. Pure.

Cells are made only for visible rows, so a table of thousands of rows costs no more than its window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rhymed.core.style import sparkline

Row = TypeVar("Row")
Cell = tuple[str, str] | Text
"""(text, style), or text of several styles that fits"""

GAP = 1
SELECTED = "reverse"
HEAD = "bold"


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`rank`: columns with the highest rank are dropped first when there is no room; 0 is never dropped."""

    title: str
    width: int  # cells, at least
    cell: Callable[[Row], Cell]
    key: Callable[[Row], Any] | None = None  # sort key; None: not sortable
    right: bool = False
    rank: int = 0
    max_width: int = 0  # cells to which it may grow; 0: it does not
    descending: bool = False  # sorted with the greatest first


@dataclass(frozen=True)
class Window(Generic[Row]):
    """A table's lines, and the row that each of them shows."""

    lines: list[Text]
    rows: list[Row | None]  # None: a heading or an empty line
    first: int  # row at the top


def fit(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """The columns that fit, with their widths."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(column.width + GAP for column in chosen) - GAP > width:
        worst = max(chosen, key=lambda column: column.rank)
        if worst.rank == 0:
            break
        chosen.remove(worst)
    room = max(0, width - sum(column.width + GAP for column in chosen) + GAP)
    widths = []
    for column in chosen:
        more = min(room, max(0, column.max_width - column.width))
        room -= more
        widths.append(column.width + more)
    return list(zip(chosen, widths, strict=True))


def ordered(rows: Sequence[Row], columns: Sequence[Column[Row]], title: str, reverse: bool) -> list[Row]:
    """Sorted (stably) by the column of this title; unsorted if there is none."""
    column = next((column for column in columns if column.title == title and column.key is not None), None)
    if column is None or column.key is None:
        return list(rows)
    return sorted(rows, key=column.key, reverse=column.descending != reverse)


def scroll(first: int, selected: int, height: int, total: int) -> int:
    """The row at the top, such that the selected row is visible and the window is full."""
    first = min(first, max(0, total - height))
    if selected >= 0 and height > 0:
        first = max(min(first, selected), selected - height + 1)
    return max(0, first)


def draw(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    *,
    width: int,
    height: int,
    selected: int = -1,
    first: int = 0,
    sort: str = "",
    reverse: bool = False,
    empty: str = "",
) -> Window[Row]:
    """Exactly `height` lines: the heading, visible rows, and empty lines."""
    fitted = fit(columns, width)
    shown = max(0, height - 1)
    first = scroll(first, selected, shown, len(rows))
    lines = [_heading(fitted, sort, reverse)]
    shown_rows: list[Row | None] = [None]
    for number, row in enumerate(rows[first : first + shown], first):
        lines.append(_line(row, fitted, width, number == selected))
        shown_rows.append(row)
    if not rows and shown:
        lines.append(Text(empty, style="dim", no_wrap=True))
        shown_rows.append(None)
    while len(lines) < height:
        lines.append(Text())
        shown_rows.append(None)
    return Window(lines[:height], shown_rows[:height], first)


def _heading(fitted: Sequence[tuple[Column[Row], int]], sort: str, reverse: bool) -> Text:
    text = Text(no_wrap=True)
    for column, width in fitted:
        mark = "" if not sort or column.title != sort else "▾" if column.descending != reverse else "▴"
        text.append(fill(column.title + mark, width, right=column.right), style="bold" if mark else HEAD + " dim")
        text.append(" " * GAP)
    return text


def _line(row: Row, fitted: Sequence[tuple[Column[Row], int]], width: int, selected: bool) -> Text:
    text = Text(no_wrap=True)
    for column, room in fitted:
        cell = column.cell(row)
        if isinstance(cell, Text):
            text.append_text(cell).append(" " * (room - cell.cell_len))
        else:
            text.append(fill(cell[0], room, right=column.right), style="" if selected else cell[1])
        text.append(" " * GAP)
    if selected:
        text.append(" " * max(0, width - text.cell_len))
        text.stylize(SELECTED)
    return text


# Numbers and texts for narrow columns, and sparklines. Pure.

UNKNOWN = "-"


def count(value: float) -> str:
    """At most six characters: `1,204`, `813k`, `4.20M`; not finite: `-`."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 99_999.5:
        return f"{value:,.0f}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = abs(value) / size
            return f"{value / size:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f}{unit}"
    return UNKNOWN


def number(value: float) -> str:
    """A metric with four significant digits."""
    if not math.isfinite(value):
        return UNKNOWN
    return count(value) if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f}%"


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """A key that sorts rollout-2 before rollout-10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


def cut(text: str, width: int) -> str:
    """In at most `width` cells, with an ellipsis if it was cut."""
    if width <= 0:
        return ""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fill(text: str, width: int, *, right: bool = False) -> str:
    """In exactly `width` cells."""
    text = cut(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


LABEL = 10
BOUNDS = 22  # cells for "0.12 .. 0.98"
LEAST = 8  # values; with fewer, the bounds are left out


def spark(label: str, values: Sequence[float], width: int, newest: str = "", style: str = "cyan") -> Text:
    """`newest`: the text of the last value."""
    text = Text(no_wrap=True)
    text.append(f"{fill(label, LABEL)} ", style="bold dim")
    if not values:
        text.append("nothing yet", style="dim")
        return text
    newest = newest or number(values[-1])
    room = width - LABEL - 1 - len(newest) - 2
    bounds = room - BOUNDS >= LEAST
    shown = list(values[-max(1, room - (BOUNDS if bounds else 0)) :])
    text.append(sparkline(shown), style=style)
    text.append(f"  {newest}", style="bold")
    if bounds and len(shown) > 1:
        text.append(cut(f"  {number(min(shown))} .. {number(max(shown))}", BOUNDS), style="dim")
    return text
