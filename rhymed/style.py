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
