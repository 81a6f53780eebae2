"""Metrics of several runs as columns, for curves in one chart. Pure: rows in, plain data out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rhymed.run.totals import Row
from rhymed.several.rows import Files

MOST_POINTS = 2_000  # of a curve; more cannot be seen
LEFT_OUT = ("step", "time")


def names(files: Sequence[Files]) -> list[str]:
    """Of all metrics that any of these runs has."""
    rows = [row for each in files for row in (*each.rows[:1], *each.rows[-1:], *each.evaluations[-1:])]
    return sorted({name for row in rows for name in row} - set(LEFT_OUT))


def curves(files: Mapping[str, Files], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Metric -> run -> columns."""
    return {metric: {run: curve(each, metric) for run, each in files.items()} for metric in metrics}


def curve(files: Files, metric: str) -> dict[str, list[float]]:
    """`steps` trained, `hours` of work until then, `values`. An evaluation is at its policy version."""
    points = list(_points(files, metric))
    every = -(-len(points) // MOST_POINTS) or 1
    kept = points[::-1][::every][::-1]  # the newest one stays
    return {name: [point[at] for point in kept] for at, name in enumerate(("steps", "hours", "values"))}


def _points(files: Files, metric: str) -> Iterator[tuple[float, float, float]]:
    hours = hours_of(files.rows)
    for place, row in enumerate(files.rows):
        if row.get(metric) is not None:
            yield row["step"] + 1, hours[place + 1], row[metric]
    if not metric.startswith(("val/", "timing_s/val")):
        return
    for row in files.evaluations:
        if row.get(metric) is not None:
            yield row["step"], hours[min(int(row["step"]), len(hours) - 1)], row[metric]


def hours_of(rows: Sequence[Row]) -> list[float]:
    """Of work before each row, and after the last one; the pauses of a resumed run are not in them."""
    return [seconds / 3600 for seconds in accumulate((row.get("timing_s/step") or 0.0 for row in rows), initial=0.0)]
