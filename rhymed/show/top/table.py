"""A table as lines: which columns fit, and their cells. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rhymed.core.style import sparkline

Row = TypeVar("Row")
Cell = tuple[str, str]
"""(text, style)"""

GAP = 1


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`rank`: columns with the highest rank are dropped first when there is no room; 0 is never dropped."""

    title: str
    width: int  # cells, at least
    cell: Callable[[Row], Cell]
    right: bool = False
    rank: int = 0
    max_width: int = 0  # cells to which it may grow; 0: it does not


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


def draw(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> list[Text]:
    """The heading and a line for each row; nothing without rows."""
    fitted = fit(columns, width)
    heads = [fill(column.title, room, right=column.right) + " " * GAP for column, room in fitted]
    return (
        [Text("".join(heads), style="bold dim", no_wrap=True), *(_line(row, fitted) for row in rows)] if rows else []
    )


def _line(row: Row, fitted: Sequence[tuple[Column[Row], int]]) -> Text:
    text = Text(no_wrap=True)
    for column, room in fitted:
        cell, style = column.cell(row)
        text.append(fill(cell, room, right=column.right), style=style).append(" " * GAP)
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
