"""How things look on a terminal, in one place: the same state has the same colour on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

ROLES = {"rollout": "▶", "reward": "★", "trainer": "▲"}
COLOURS = {
    "waiting": "grey50",
    "running": "cyan",
    "generated": "blue",
    "scoring": "magenta",
    "scored": "yellow",
    "training": "green",
    "trained": "green",
    "filtered": "grey70",
    "dropped": "red",
}
SPARKS = "▁▂▃▄▅▆▇█"


def plain_table(*, expand: bool = False) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=expand)


def sparkline(values: list[float]) -> str:
    """One character per value, between the smallest and the largest."""
    low, span = min(values), max(values) - min(values)
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1))] if span else SPARKS[3] for value in values)
