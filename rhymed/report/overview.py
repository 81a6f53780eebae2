"""The curves of a run as a picture: rows of metrics in, a PNG out. Drawn with matplotlib, where that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rhymed.run.totals import Row, epochs

MOST_LINES = 40  # epochs beyond which their boundaries would cover the curves


def draw(rows: Sequence[Row], path: Path, *, title: str, evaluations: Sequence[Row] = ()) -> Path | None:
    """Reward, response length, drafting (where there was any) and time over the steps. None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    panels = [_reward, _lengths, *([_drafting] if _drafted(rows) else []), _seconds]
    figure = Figure(figsize=(8, 3 + 4 / 3 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=[2, *[1] * (len(panels) - 1)])
    for panel, axis in zip(panels, axes, strict=True):
        panel(axis, rows)
        axis.spines[["top", "right"]].set_visible(False)
    _evaluations(axes[0], evaluations)
    _boundaries(axes, rows)
    axes[0].set(title=title)
    axes[0].legend(frameon=False)
    axes[-1].set(xlabel="step")
    figure.savefig(path, dpi=120)
    return path


def _reward(axis: Any, rows: Sequence[Row]) -> None:
    rewards = _column(rows, "reward/mean")
    smooth = [mean(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
    axis.plot(_steps(rows), rewards, color="#9db4c8", marker=".", label="step")
    axis.plot(_steps(rows), smooth, color="#1f5f8b", linewidth=2, label="mean of 5 steps")
    axis.set(ylabel="reward")


def _evaluations(axis: Any, evaluations: Sequence[Row]) -> None:
    means = {key for row in evaluations for key in row if key.startswith("val/") and key.endswith("/reward/mean")}
    for key in sorted(means | {key for row in evaluations for key in row if "/acc/mean@" in key}):
        known = [row for row in evaluations if row.get(key) is not None]
        axis.plot([row["step"] for row in known], [row[key] for row in known], marker="o", linestyle="--", label=key)


def _lengths(axis: Any, rows: Sequence[Row]) -> None:
    axis.plot(_steps(rows), _column(rows, "response_length/mean"), color="#6a994e")
    axis.set(ylabel="response tokens")


def _drafted(rows: Sequence[Row]) -> bool:
    return any(row.get("rollout/spec_drafted") for row in rows)


def _drafting(axis: Any, rows: Sequence[Row]) -> None:
    """Both are 1 in plain decoding, so they share an axis."""
    axis.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
    axis.plot(_steps(rows), _column(rows, "rollout/spec_accept_length"), color="#8e5572", label="tokens a forward")
    axis.plot(_steps(rows), _column(rows, "rollout/spec_net_speedup"), color="#d08c3f", label="net speed-up, est.")
    axis.set(ylabel="plain = 1")
    axis.legend(frameon=False, loc="upper left", ncols=2)


def _seconds(axis: Any, rows: Sequence[Row]) -> None:
    phases = ("rollout", "reward", "train")
    axis.stackplot(_steps(rows), *(_column(rows, f"timing_s/{phase}") for phase in phases), labels=phases, alpha=0.8)
    axis.set(ylabel="seconds")
    axis.legend(frameon=False, loc="upper right", ncols=3)


def _boundaries(axes: Any, rows: Sequence[Row]) -> None:
    """A thin line where an epoch begins."""
    begins = [epoch["first_step"] for epoch in epochs(rows)[1:]]
    if len(begins) <= MOST_LINES:
        for axis in axes:
            for step in begins:
                axis.axvline(step + 0.5, color="#cccccc", linewidth=0.7, zorder=0)


def _steps(rows: Sequence[Row]) -> list[int]:
    """As people count them, from 1; the step *k* then ends with policy version *k*, which evaluations are about."""
    return [row["step"] + 1 for row in rows]


def _column(rows: Sequence[Row], key: str) -> list[float]:
    return [float("nan") if row.get(key) is None else row[key] for row in rows]
