"""A run's timeline as a picture: a bar a worker, cut over time into what it did. With matplotlib, where that is.

`shares` is numpy alone: of each slice of time, the part that each activity took. A bar is as high as a worker is
busy: work is stacked from below in the order of `rhymed.service.activities`, pale grey is waiting, white is nothing known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.run.timeline import Event, Span, Timeline, by_worker
from rhymed.service.activities import ACTIVITIES, HEX, WAITING

BINS = 1400  # slices of time in a picture
HEIGHT = 24  # pixels of a bar, before it is drawn to scale
CLOSE = 0.3  # of a span's length: what is that near to it adjoins it
GAP = 0.25  # of a bar's height, between two
PALE = 0.4  # of waiting's colour, on white
MOST_LINES, MOST_LABELS = 150, 24  # steps beyond which their ends would cover the bars, or each other
LEGEND = 8  # names beside each other
INK, LOSS = "#222222", "#d1001f"
MARKS = {"joined": (">", INK), "left": ("<", INK), "lost": ("x", LOSS), "rests": ("s", LOSS)}


def draw(timeline: Timeline, path: Path, *, title: str = "") -> Path | None:
    """As a PNG. None without matplotlib, or when no worker was heard of."""
    made = figure(timeline, title)
    if made is None:
        return None
    made.savefig(path, dpi=120)
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
    made = Figure(figsize=(13, 1.6 + min(0.5, max(0.16, 9 / lanes)) * lanes), layout="constrained")
    axis = made.subplots()
    edges = np.linspace(begin, end, BINS + 1)
    for lane, spans in enumerate(workers.values()):
        image = _bar(shares(spans, edges), ACTIVITIES[spans[0].role])
        box = (0.0, end - begin, lane + 1 - GAP / 2, lane + GAP / 2)
        axis.imshow(image, extent=box, aspect="auto", interpolation="nearest", zorder=1)
    _steps(axis, timeline.events, begin)
    _marks(axis, timeline.events, list(workers), begin)
    _frame(axis, workers, end - begin, title)
    _legend(made, workers, {event.event for event in timeline.events})
    return made


def shares(spans: Sequence[Span], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each slice between two edges, the part that each of the role's activities took [slices, activities].

    Spans are one worker's, in the order of time. A heartbeat that came late or early is no gap: a span begins where
    the one before ended, if that is near. A row's sum is below 1 where nothing is known of a part of the slice.
    """
    names = ACTIVITIES[spans[0].role]
    ends = np.array([span.t for span in spans])
    starts = np.array([span.t - span.s for span in spans])
    before = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
    near = starts - before <= CLOSE * (ends - starts)
    starts, ends = np.where(near, before, starts), np.maximum(ends, before)
    lengths = np.maximum(0.0, ends - starts)
    told = np.array([[span.inside.get(name, 0.0) for name in names] for span in spans])
    whole = np.maximum(told.sum(axis=1, keepdims=True), 1e-9)
    grown = np.cumsum(told / whole * lengths[:, None], axis=0)
    points = np.stack([starts, starts + lengths], axis=1).ravel()
    values = np.stack([np.vstack([np.zeros((1, len(names))), grown[:-1]]), grown], axis=1).reshape(-1, len(names))
    at = np.stack([np.interp(edges, points, column) for column in values.T], axis=1)
    return np.asarray(np.diff(at, axis=0) / np.diff(edges)[:, None])


def _bounds(timeline: Timeline) -> tuple[float, float]:
    """From the first span's beginning to whatever came last; at least a second."""
    begin = min(span.t - span.s for span in timeline.spans)
    end = max(timeline.last, max(span.t for span in timeline.spans))
    return begin, max(end, begin + 1.0)


def _bar(parts: NDArray[np.float64], names: Sequence[str]) -> NDArray[np.float64]:
    """RGB [HEIGHT, slices, 3], from the top."""
    colours = np.array([[1.0, 1.0, 1.0], *(_rgb(name) for name in names)])
    tops = np.cumsum(parts, axis=1)  # [slices, activities]
    levels = (np.arange(HEIGHT)[::-1] + 0.5) / HEIGHT
    place = (tops[None] <= levels[:, None, None]).sum(axis=2)  # how many activities lie wholly below
    return np.asarray(colours[np.where(place == len(names), 0, place + 1)])


def _rgb(name: str) -> NDArray[np.float64]:
    full = np.array([int(HEX[name][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return 1 - PALE * (1 - full) if name in WAITING else full


def _steps(axis: Any, events: Sequence[Event], begin: float) -> None:
    """A line where a step was trained, its number, from 1, above; a star for an evaluation."""
    trained = {event.step: event.t - begin for event in events if event.event == "trained" and event.step is not None}
    if 0 < len(trained) <= MOST_LINES:
        axis.vlines(list(trained.values()), 0, 1, transform=axis.get_xaxis_transform(), color=INK, lw=0.6, zorder=2)
    every = -(-len(trained) // MOST_LABELS) or 1
    top = axis.secondary_xaxis("top")
    shown = [(step + 1, at) for step, at in sorted(trained.items()) if (step + 1) % every == 0]
    top.set_xticks([at for _, at in shown], [str(number) for number, _ in shown], fontsize=7)
    top.set_xlabel("step trained (★ evaluated)", fontsize=8)
    exams = [event.t - begin for event in events if event.event == "evaluated"]
    if exams:
        axis.plot(exams, [0.0] * len(exams), "*", color=INK, clip_on=False, zorder=4, markersize=7)


def _marks(axis: Any, events: Sequence[Event], workers: Sequence[str], begin: float) -> None:
    """On the bars of those to whom it happened."""
    for kind, (marker, colour) in MARKS.items():
        at = [(event.t - begin, workers.index(event.worker) + 0.5) for event in events
              if event.event == kind and event.worker in workers]  # fmt: skip
        if not at:
            continue  # an empty line counts in the layout
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


def _legend(made: Any, workers: dict[str, list[Span]], events: set[str]) -> None:
    """Every activity that some worker had, and the marks that there are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    roles = dict.fromkeys(spans[0].role for spans in workers.values())
    had = {name for spans in workers.values() for span in spans for name in span.inside}
    names = dict.fromkeys(name for role in roles for name in ACTIVITIES[role] if name in had)
    patches = [Patch(color=tuple(_rgb(name)), label=name) for name in names]
    marks = [
        Line2D([], [], marker=mark, color=colour, ls="", label=kind)
        for kind, (mark, colour) in MARKS.items()
        if kind in events
    ]
    handles = [*patches, *marks]
    made.legend(handles=handles, loc="outside lower center", ncols=LEGEND, frameon=False, fontsize=8)
