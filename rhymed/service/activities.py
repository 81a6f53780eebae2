"""What workers do with their time: the names, their order, and their colours, in one place.

Every worker counts seconds by activity and tells them as `seconds/<activity>` (docs/metrics.md). The order is the one
in which parts of a bar are stacked: work first, waiting last. No two activities of one role look alike, on white or
on near-black, to the colour-blind too; waiting is grey everywhere. Knows neither clocks nor workers.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "seconds/"
"""Before an activity's name in `Heartbeat.stats`."""

ACTIVITIES: dict[str, tuple[str, ...]] = {
    "rollout": ("verify", "decode", "prefill", "draft", "update", "idle"),
    "reward": ("score", "idle"),
    "trainer": ("train", "load", "publish", "checkpoint", "wait"),
}
"""By role, in the order of a stacked bar."""

WAITING = frozenset({"idle", "wait"})
"""Doing nothing."""

HEX = {
    "verify": "#008a6e",
    "decode": "#313fb7",
    "prefill": "#5699ff",
    "draft": "#f4a571",
    "update": "#b44f13",
    "score": "#b88e05",
    "train": "#934ab5",
    "load": "#d0b700",
    "publish": "#f90e5d",
    "checkpoint": "#7a3655",
    "idle": "#9aa0a6",
    "wait": "#9aa0a6",
}
"""For the web and for pictures."""

TERMINAL = {
    "verify": "green",
    "decode": "blue",
    "prefill": "bright_cyan",
    "draft": "yellow",
    "update": "red",
    "score": "yellow",
    "train": "magenta",
    "load": "yellow",
    "publish": "bright_red",
    "checkpoint": "cyan",
    "idle": "bright_black",
    "wait": "bright_black",
}
"""For rich: the terminal's own colours, which suit its ground."""


def seconds_of(role: str, stats: Mapping[str, float]) -> dict[str, float]:
    """What a worker of that role told, by activity in the role's order; those that it did not tell are missing."""
    return {name: stats[PREFIX + name] for name in ACTIVITIES.get(role, ()) if PREFIX + name in stats}


def stats_of(role: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """For `Heartbeat.stats`: every activity of that role, 0 where there was none of it."""
    return {PREFIX + name: seconds.get(name, 0.0) for name in ACTIVITIES[role]}
