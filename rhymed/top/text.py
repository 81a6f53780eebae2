"""Numbers and texts for narrow columns, and sparklines. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rhymed.style import sparkline

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
