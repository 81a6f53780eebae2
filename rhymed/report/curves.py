"""A run's metrics over its steps as curves: one PNG file per question for the report. Needs matplotlib.

A question without any number gets no picture. Rows count steps from 0, axes from 1. `overview` draws some of the same
curves into one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rhymed.run.totals import Row, epochs

SIZE = (6.2, 2.9)  # inches
DPI = 110
SMOOTH = 5  # steps
MEBI = 2**20
HEALTH = "Training health: "
LEGEND = 4  # curves whose names fit above the picture, where they cover none
MOST_LINES = 40  # epochs beyond which their boundaries would cover the curves
BLUE, PALE, GREEN, PURPLE, ORANGE, GREY = "#1f5f8b", "#9db4c8", "#6a994e", "#8e5572", "#d08c3f", "#888888"


class Panel(NamedTuple):
    name: str  # of the file
    title: str
    draw: Callable[[Any, Sequence[Row]], bool]  # False: there is nothing to draw


class Picture(NamedTuple):
    file: Path
    title: str
    about: str  # alternative text


def draw(rows: Sequence[Row], evaluations: Sequence[Row], folder: Path) -> list[Picture] | None:
    """Write one picture per panel that has data into `folder`. None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    pictures = []
    panels = [
        *PANELS,
        Panel("evaluation", "Evaluation on held-out prompts", lambda axis, _: evaluation_curves(axis, evaluations)),
    ]
    for panel in panels:
        figure = Figure(figsize=SIZE)
        axis = figure.subplots()
        figure.subplots_adjust(left=0.12, right=0.98, bottom=0.17, top=0.89)  # a computed layout takes twice as long
        if not panel.draw(axis, rows):
            continue
        axis.spines[["top", "right"]].set_visible(False)
        if len(figure.axes) > 1:
            figure.subplots_adjust(right=0.87)
        finish(figure, axis, () if panel.name == "evaluation" else rows)
        file = folder / f"{panel.name}.png"
        figure.savefig(file, dpi=DPI)
        pictures.append(Picture(file, panel.title, _about(panel, rows)))
    return pictures


def finish(figure: Any, axis: Any, rows: Sequence[Row]) -> None:
    """Ticks, legend, and the same steps in every picture, whether or not the last one has a value. `rows` is empty
    where x is not a step."""
    axis.set(xlabel="step" if rows else "policy version")
    axis.locator_params(axis="x", integer=True)
    for side in figure.axes:
        side.yaxis.set_major_formatter(lambda value, _: tick(value))
    if count := len(axis.get_legend_handles_labels()[1]):
        above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.98), "ncols": LEGEND, "borderpad": 0.2}
        axis.legend(frameon=False, fontsize=8, columnspacing=1.2, **(above if count <= LEGEND else {}))
    if rows:
        first, last = step_numbers(rows)[0], step_numbers(rows)[-1]
        axis.set(xlim=(first - 0.5, last + 0.5))
        epoch_boundaries(axis, rows)


def tick(value: float) -> str:
    """The whole number at each tick: a common factor above the axis is overlooked."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")


def _about(panel: Panel, rows: Sequence[Row]) -> str:
    steps = step_numbers(rows)
    return f"{panel.title}, steps {steps[0]} to {steps[-1]}" if steps else panel.title


def step_numbers(rows: Sequence[Row]) -> list[int]:
    """Counted from 1: step *k* then ends with policy version *k*, by which evaluations are numbered."""
    return [row["step"] + 1 for row in rows]


def _line(axis: Any, rows: Sequence[Row], key: str, **style: Any) -> bool:
    """Draw the rows that have the metric. False if none has."""
    known = [row for row in rows if row.get(key) is not None]
    if known:
        marker = "." if len(known) < 40 else ""
        axis.plot(step_numbers(known), [row[key] for row in known], marker=marker, **style)
    return bool(known)


def reward(axis: Any, rows: Sequence[Row]) -> bool:
    known = [row for row in rows if row.get("reward/mean") is not None]
    values = [row["reward/mean"] for row in known]
    smooth = [mean(values[max(0, place - SMOOTH + 1) : place + 1]) for place in range(len(values))]
    there = _line(axis, rows, "reward/mean", color=PALE, label="step")
    if there:
        axis.plot(step_numbers(known), smooth, color=BLUE, linewidth=2, label=f"mean of {SMOOTH} steps")
    return there


def lengths(axis: Any, rows: Sequence[Row]) -> bool:
    axis.set(ylabel="tokens")
    there = _line(axis, rows, "response_length/mean", color=GREEN, label="mean")
    return _line(axis, rows, "response_length/max", color=PALE, label="longest") or there


def _acceptance(axis: Any, rows: Sequence[Row]) -> bool:
    axis.set(ylim=(0, 1.02))
    there = _line(axis, rows, "rollout/spec_accept_rate", color=PURPLE, label="drafts accepted")
    return _line(axis, rows, "rollout/ahead_kept_ratio", color=ORANGE, label="run-ahead tokens kept") or there


def gain(axis: Any, rows: Sequence[Row]) -> bool:
    """Both are 1 in plain decoding."""
    axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    there = _line(axis, rows, "rollout/spec_accept_length", color=PURPLE, label="tokens per forward")
    return _line(axis, rows, "rollout/spec_net_speedup", color=ORANGE, label="net speed-up, estimated") or there


def _bubble(axis: Any, rows: Sequence[Row]) -> bool:
    axis.set(ylim=(0, 1.02), ylabel="share of slot time")
    return _line(axis, rows, "rollout/bubble_ratio", color=BLUE)


def _staleness(axis: Any, rows: Sequence[Row]) -> bool:
    axis.set(ylabel="steps", ylim=(-0.05, max([1.0, *(row.get("staleness/max") or 0.0 for row in rows)]) + 0.1))
    there = _line(axis, rows, "staleness/max", color=PALE, label="oldest token")
    return _line(axis, rows, "staleness/mean", color=BLUE, label="mean") or there


def seconds(axis: Any, rows: Sequence[Row]) -> bool:
    phases = ("rollout", "reward", "train")
    columns = [[row.get(f"timing_s/{phase}") or 0.0 for row in rows] for phase in phases]
    if not any(map(any, columns)):
        return False
    steps = step_numbers(rows)
    if len(rows) < 3:  # too few for an area
        for place, (phase, column) in enumerate(zip(phases, columns, strict=True)):
            below = [sum(values) for values in zip(*columns[:place], strict=True)] if place else 0
            axis.bar(steps, column, bottom=below, label=phase, width=0.5, color=(BLUE, ORANGE, GREEN)[place])
    else:
        axis.stackplot(steps, *columns, labels=phases, colors=(BLUE, ORANGE, GREEN), alpha=0.8)
    axis.set(ylabel="seconds")
    return True


def _store(axis: Any, rows: Sequence[Row]) -> bool:
    """The store's size; without that metric, the sum of the tokens that the run has added."""
    sizes = [
        {**row, "size": row["store/used_bytes"] / MEBI} for row in rows if row.get("store/used_bytes") is not None
    ]
    if sizes:
        axis.set(ylabel="MiB")
        return _line(axis, sizes, "size", color=GREEN)
    total, grown = 0.0, []
    for row in rows:
        total += row.get("rollout/tokens") or 0.0
        grown.append({"step": row["step"], "tokens": total})
    axis.set(ylabel="response tokens, summed")
    return total > 0 and _line(axis, grown, "tokens", color=GREEN)


def _policy(axis: Any, rows: Sequence[Row]) -> bool:
    """Loss and entropy have similar magnitudes; the gradient norm may have any, so it has its own axis."""
    axis.set(ylabel="entropy (nats per token), loss")
    there = _line(axis, rows, "actor/entropy", color=BLUE, label="entropy")
    there = _line(axis, rows, "actor/loss", color=ORANGE, label="loss") or there
    if not any(row.get("actor/grad_norm") is not None for row in rows):
        return there
    norm = {"color": PALE, "label": "gradient norm, before clipping"}
    if not there:
        axis.set(ylabel="")
        return _line(axis, rows, "actor/grad_norm", **norm)
    right = axis.twinx()
    right.spines["top"].set_visible(False)
    right.set(ylabel="gradient norm")
    axis.plot([], [], **norm)  # for the legend
    axis.set(zorder=right.get_zorder() + 1, facecolor="none")  # curves and legend in front of the norm
    return _line(right, rows, "actor/grad_norm", **norm)


def _signal(axis: Any, rows: Sequence[Row]) -> bool:
    """What limits learning: groups with equal rewards, and responses without an end."""
    axis.set(ylim=(0, 1.02), ylabel="share")
    there = _line(axis, rows, "reward/flat_groups", color=ORANGE, label="flat groups")
    return _line(axis, rows, "response_length/clip_ratio", color=BLUE, label="responses cut at the limit") or there


def _mismatch(axis: Any, rows: Sequence[Row]) -> bool:
    """Often smaller than anything else by many orders, so it has a picture of its own."""
    axis.set(ylabel="nats per token")
    return _line(axis, rows, "mismatch_kl/mean", color=PURPLE)


def _distance(axis: Any, rows: Sequence[Row]) -> bool:
    axis.set(ylabel="nats per token; share")
    there = _line(axis, rows, "actor/kl", color=GREEN, label="KL to the reference model")
    return _line(axis, rows, "actor/pg_clipfrac", color=ORANGE, label="share of tokens clipped") or there


def _critic(axis: Any, rows: Sequence[Row]) -> bool:
    """Values and returns have the reward's unit; the explained share of the variance has its own axis."""
    axis.set(ylabel="reward")
    there = _line(axis, rows, "critic/return_mean", color=PALE, label="mean return")
    there = _line(axis, rows, "critic/value_mean", color=BLUE, label="mean value") or there
    there = _line(axis, rows, "critic/loss", color=ORANGE, label="loss") or there
    if not any(row.get("critic/explained_variance") is not None for row in rows):
        return there
    share = {"color": GREEN, "label": "explained variance"}
    right = axis.twinx()
    right.spines["top"].set_visible(False)
    right.set(ylabel="share of the variance")
    axis.plot([], [], **share)  # for the legend
    axis.set(zorder=right.get_zorder() + 1, facecolor="none")
    return _line(right, rows, "critic/explained_variance", **share)


def evaluation_curves(axis: Any, evaluations: Sequence[Row], **style: Any) -> bool:
    """Accuracy and mean reward of each held-out dataset by policy version. False if there are none."""
    keys = sorted({key for row in evaluations for key in row if "/acc/mean@" in key or key.endswith("/reward/mean")})
    for key in (key for key in keys if key.startswith("val/")):
        known = [row for row in evaluations if row.get(key) is not None]
        label = key.removeprefix("val/")
        axis.plot([row["step"] for row in known], [row[key] for row in known], marker="o", label=label, **style)
    return any(key.startswith("val/") for key in keys)


def epoch_boundaries(axis: Any, rows: Sequence[Row]) -> None:
    """A thin line at the start of each epoch but the first."""
    begins = [epoch["first_step"] for epoch in epochs(rows)[1:]]
    if len(begins) <= MOST_LINES:
        for step in begins:
            axis.axvline(step + 0.5, color="#cccccc", linewidth=0.7, zorder=0)


PANELS = (
    Panel("reward", "Reward", reward),
    Panel("signal", "Flat groups and clipped responses", _signal),
    Panel("length", "Response length", lengths),
    Panel("policy", f"{HEALTH}entropy, loss, gradient norm", _policy),
    Panel("mismatch", f"{HEALTH}mismatch of engine and trainer", _mismatch),
    Panel("distance", f"{HEALTH}KL and clip fraction", _distance),
    Panel("critic", f"{HEALTH}the critic", _critic),
    Panel("acceptance", "Share of drafted tokens that were accepted", _acceptance),
    Panel("gain", "Speed-up by drafting", gain),
    Panel("bubble", "Bubble: share of slot time without a sample", _bubble),
    Panel("staleness", "Staleness: age of the oldest token at training", _staleness),
    Panel("seconds", "Where a step's time goes", seconds),
    Panel("store", "The store", _store),
)
