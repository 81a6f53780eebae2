"""A run's timeline as a picture: one bar per worker, divided over time by activity. Needs matplotlib.

A bar is filled from below by the shares of its activities, in the order of `rhymed.service.activities`: pale colours
are waiting, white is unknown. `shares` is pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.run.timeline import Event, Span, Timeline, by_worker
from rhymed.service.activities import ACTIVITIES, HEX, WAITING

BINS = 1400  # time slices of a picture
HEIGHT = 24  # pixels of a bar before scaling
CLOSE = 0.3  # of a span's length; a smaller gap before a span is closed
GAP = 0.25  # between two bars, of a bar's height
PALE = 0.4  # opacity of waiting colours on white
MOST_LINES, MOST_LABELS = 150, 24  # steps beyond which lines would cover the bars, labels each other
LEGEND = 8  # columns
INK, LOSS = "#222222", "#d1001f"
MARKS = {"joined": (">", INK), "left": ("<", INK), "lost": ("x", LOSS), "rests": ("s", LOSS)}


def draw(timeline: Timeline, path: Path, *, title: str = "") -> Path | None:
    """Write the PNG. None without matplotlib, or if no worker ever reported."""
    if (picture := figure(timeline, title)) is None:
        return None
    picture.savefig(path, dpi=120)
    return path


def figure(timeline: Timeline, title: str = "") -> Any:
    """A matplotlib `Figure`; None as for `draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    workers = by_worker(timeline.spans)
    if not workers:
        return None
    begin, end = _bounds(timeline)
    lanes = len(workers)
    picture = Figure(figsize=(13, 1.6 + min(0.5, max(0.16, 9 / lanes)) * lanes), layout="constrained")
    axis = picture.subplots()
    edges = np.linspace(begin, end, BINS + 1)
    for lane, spans in enumerate(workers.values()):
        image = _bar(shares(spans, edges), ACTIVITIES[spans[0].role])
        box = (0.0, end - begin, lane + 1 - GAP / 2, lane + GAP / 2)
        axis.imshow(image, extent=box, aspect="auto", interpolation="nearest", zorder=1)
    _steps(axis, timeline.events, begin)
    _marks(axis, timeline.events, list(workers), begin)
    _frame(axis, workers, end - begin, title)
    _legend(picture, workers, {event.event for event in timeline.events})
    return picture


def shares(spans: Sequence[Span], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each slice that each activity of the role took [slices, activities].

    `spans` are those of one worker, ordered by time. Heartbeats may be late or early: a span starts where the one
    before ended if the gap is small. A row sums to less than 1 if part of its slice is unknown.
    """
    names = ACTIVITIES[spans[0].role]
    ends = np.array([span.t for span in spans])
    starts = np.array([span.t - span.s for span in spans])
    before = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
    near = starts - before <= CLOSE * (ends - starts)
    starts, ends = np.where(near, before, starts), np.maximum(ends, before)
    lengths = np.maximum(0.0, ends - starts)
    seconds = np.array([[span.inside.get(name, 0.0) for name in names] for span in spans])
    whole = np.maximum(seconds.sum(axis=1, keepdims=True), 1e-9)
    grown = np.cumsum(seconds / whole * lengths[:, None], axis=0)
    points = np.stack([starts, starts + lengths], axis=1).ravel()
    values = np.stack([np.vstack([np.zeros((1, len(names))), grown[:-1]]), grown], axis=1).reshape(-1, len(names))
    at = np.stack([np.interp(edges, points, column) for column in values.T], axis=1)
    return np.asarray(np.diff(at, axis=0) / np.diff(edges)[:, None])


def _bounds(timeline: Timeline) -> tuple[float, float]:
    """From the start of the first span to the last entry; at least one second."""
    begin = min(span.t - span.s for span in timeline.spans)
    end = max(timeline.last, max(span.t for span in timeline.spans))
    return begin, max(end, begin + 1.0)


def _bar(parts: NDArray[np.float64], names: Sequence[str]) -> NDArray[np.float64]:
    """RGB [HEIGHT, slices, 3], from the top."""
    colours = np.array([[1.0, 1.0, 1.0], *(_rgb(name) for name in names)])
    tops = np.cumsum(parts, axis=1)  # [slices, activities]
    levels = (np.arange(HEIGHT)[::-1] + 0.5) / HEIGHT
    place = (tops[None] <= levels[:, None, None]).sum(axis=2)  # number of activities wholly below this level
    return np.asarray(colours[np.where(place == len(names), 0, place + 1)])


def _rgb(name: str) -> NDArray[np.float64]:
    full = np.array([int(HEX[name][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return 1 - PALE * (1 - full) if name in WAITING else full


def _steps(axis: Any, events: Sequence[Event], begin: float) -> None:
    """A line where a step was trained, with its number (from 1) above; a star for an evaluation."""
    trained = {event.step: event.t - begin for event in events if event.event == "trained" and event.step is not None}
    if 0 < len(trained) <= MOST_LINES:
        axis.vlines(list(trained.values()), 0, 1, transform=axis.get_xaxis_transform(), color=INK, lw=0.6, zorder=2)
    every = -(-len(trained) // MOST_LABELS) or 1
    top = axis.secondary_xaxis("top")
    shown = [(step + 1, at) for step, at in sorted(trained.items()) if (step + 1) % every == 0]
    top.set_xticks([at for _, at in shown], [str(number) for number, _ in shown], fontsize=7)
    top.set_xlabel("step trained (★ evaluated)", fontsize=8)
    evaluated = [event.t - begin for event in events if event.event == "evaluated"]
    if evaluated:
        axis.plot(evaluated, [0.0] * len(evaluated), "*", color=INK, clip_on=False, zorder=4, markersize=7)


def _marks(axis: Any, events: Sequence[Event], workers: Sequence[str], begin: float) -> None:
    """Joined, left, lost and resting, on the bar of the worker."""
    for kind, (marker, colour) in MARKS.items():
        at = [(event.t - begin, workers.index(event.worker) + 0.5) for event in events
              if event.event == kind and event.worker in workers]  # fmt: skip
        if not at:
            continue  # an empty artist would count in the layout
        size = 5 if len(workers) <= 24 else 3
        axis.plot(
            [x for x, _ in at], [y for _, y in at], marker, color=colour, markersize=size, clip_on=False, zorder=5
        )


def _frame(axis: Any, workers: dict[str, list[Span]], seconds: float, title: str) -> None:
    lanes = len(workers)
    axis.set(xlim=(0, seconds), ylim=(lanes, 0), xlabel="seconds", title=title)
    size = 8 if lanes <= 24 else 6
    axis.set_yticks([lane + 0.5 for lane in range(lanes)], list(workers), fontsize=size)
    where = axis.get_yaxis_transform()
    for lane, spans in enumerate(workers.values()):
        axis.text(1.005, lane + 0.5, _busy(spans), transform=where, va="center", fontsize=size)
    axis.tick_params(axis="y", length=0, pad=7)
    axis.spines[:].set_visible(False)


def _busy(spans: Sequence[Span]) -> str:
    whole = sum(span.s for span in spans)
    waiting = sum(seconds for span in spans for name, seconds in span.inside.items() if name in WAITING)
    return f"{1 - waiting / whole:.0%} busy" if whole else ""


def _legend(picture: Any, workers: dict[str, list[Span]], events: set[str]) -> None:
    """The activities and marks that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    roles = dict.fromkeys(spans[0].role for spans in workers.values())
    present = {name for spans in workers.values() for span in spans for name in span.inside}
    names = dict.fromkeys(name for role in roles for name in ACTIVITIES[role] if name in present)
    patches = [Patch(color=tuple(_rgb(name)), label=name) for name in names]
    marks = [
        Line2D([], [], marker=mark, color=colour, ls="", label=kind)
        for kind, (mark, colour) in MARKS.items()
        if kind in events
    ]
    handles = [*patches, *marks]
    picture.legend(handles=handles, loc="outside lower center", ncols=LEGEND, frameon=False, fontsize=8)
