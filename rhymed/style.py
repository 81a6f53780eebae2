"""How things look on a terminal, in one place: the same state has the same colour on every screen."""

from __future__ import annotations

ROLES = {"rollout": "▶", "reward": "★", "trainer": "▲"}
COLOURS = {
    "waiting": "grey50",
    "running": "cyan",
    "generated": "blue",
    "scoring": "magenta",
    "scored": "yellow",
    "training": "green",
    "trained": "green",
    "dropped": "red",
}
SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """One character per value, between the smallest and the largest."""
    low, span = min(values), max(values) - min(values)
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1))] if span else SPARKS[3] for value in values)
