"""The main curves of a run in one picture (reward.png), drawn with matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rhymed.report import curves
from rhymed.run.totals import Row


def draw(rows: Sequence[Row], path: Path, *, title: str, evaluations: Sequence[Row] = ()) -> Path | None:
    """Reward, response length, drafting (if there was any) and seconds over the steps. None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    drafted = any(row.get("rollout/spec_drafted") for row in rows)
    panels = [
        ("reward", curves.reward),
        ("response tokens", curves.lengths),
        *([("plain = 1", curves.gain)] if drafted else []),
        ("seconds", curves.seconds),
    ]
    figure = Figure(figsize=(8, 3 + 4 / 3 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=[2, *[1] * (len(panels) - 1)])
    for (label, panel), axis in zip(panels, axes, strict=True):
        panel(axis, rows)
        if panel is curves.reward:
            curves.evaluation_curves(axis, evaluations, linestyle="--")
        axis.set(ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(frameon=False, ncols=3)
        curves.epoch_boundaries(axis, rows)
    axes[0].set(title=title)
    axes[-1].set(xlabel="step")
    figure.savefig(path, dpi=120)
    return path
