"""Numbers over time in one line: the last ones that there is room for, between their smallest and their largest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from rhymed.progress import sparkline
from rhymed.top.words import cut, fill, number

LABEL = 10
BOUNDS = 22  # cells for "0.12 .. 0.98"
LEAST = 8  # values, below which the bounds give way


def spark(label: str, values: Sequence[float], width: int, newest: str = "", style: str = "cyan") -> Text:
    """`newest`: how the last value is written."""
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
