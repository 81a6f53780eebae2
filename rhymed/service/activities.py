"""Activities of workers: their names, order and colours.

Every worker reports its seconds by activity as `seconds/<activity>` (docs/metrics.md). The order is that of a stacked
bar: work first, waiting last. No two activities of a role have similar colours, on white or near-black, for the
colour-blind too; waiting is grey everywhere. Knows neither clocks nor workers.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "seconds/"
"""Before an activity's name in `Heartbeat.stats`."""

ACTIVITIES: dict[str, tuple[str, ...]] = {
    "rollout": ("verify", "decode", "prefill", "draft", "update", "idle"),
    "environment": ("act", "idle"),
    "reward": ("score", "idle"),
    "trainer": ("train", "load", "publish", "checkpoint", "wait"),
}
"""By role, in the order of a stacked bar."""

WAITING = frozenset({"idle", "wait"})
"""Activities without work."""

HEX = {
    "verify": "#008a6e",
    "decode": "#313fb7",
    "prefill": "#5699ff",
    "draft": "#f4a571",
    "update": "#b44f13",
    "act": "#007fa8",
    "score": "#b88e05",
    "train": "#934ab5",
    "load": "#d0b700",
    "publish": "#f90e5d",
    "checkpoint": "#7a3655",
    "idle": "#9aa0a6",
    "wait": "#9aa0a6",
}
"""For the web and for plots."""

TERMINAL = {
    "verify": "green",
    "decode": "blue",
    "prefill": "bright_cyan",
    "draft": "yellow",
    "update": "red",
    "act": "bright_cyan",
    "score": "yellow",
    "train": "magenta",
    "load": "yellow",
    "publish": "bright_red",
    "checkpoint": "cyan",
    "idle": "bright_black",
    "wait": "bright_black",
}
"""For rich: the terminal's own colours, which suit its background."""


def seconds_of(role: str, stats: Mapping[str, float]) -> dict[str, float]:
    """From a worker's heartbeat, in the order of its role; activities that it did not report are missing."""
    return {name: stats[PREFIX + name] for name in ACTIVITIES.get(role, ()) if PREFIX + name in stats}


def stats_of(role: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """For `Heartbeat.stats`: every activity of the role, 0 if it did not occur."""
    return {PREFIX + name: seconds.get(name, 0.0) for name in ACTIVITIES[role]}
