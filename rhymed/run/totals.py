"""Totals of a run's metrics: over all steps, of drafting, and per epoch. Pure.

A row is a step's line of `metrics.jsonl`, names as in docs/metrics.md; a value may be missing or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import mean
from typing import Any

MODEST = 1.3  # a speed-up below this has a reason that people look for
SHORT = 64  # response tokens, mean
ALIKE = 0.5  # of the drafted tokens, accepted
EDGE_STEPS = 5  # the means of this many first and last steps are compared

Row = dict[str, Any]


def totals(rows: Sequence[Row], elapsed_s: float) -> dict[str, float]:
    """Of the rows in order; unknown values are NaN. Steps whose samples were in the store already, after a resume,
    count neither for speed nor for times."""
    rewards = _known(rows, "reward/mean")
    generated = [row for row in rows if row.get("rollout/tokens_per_s") != 0]
    edge = max(1, min(EDGE_STEPS, len(rewards) // 2))
    first = mean(rewards[:edge]) if rewards else float("nan")
    last = mean(rewards[-edge:]) if rewards else float("nan")

    def average(key: str, rows: Sequence[Row] = rows) -> float:
        values = _known(rows, key)
        return mean(values) if values else float("nan")

    return {
        "steps": len(rows),
        "elapsed_s": elapsed_s,
        "edge": edge,
        "reward_first": first,
        "reward_last": last,
        "reward_gain": last - first,
        "tokens": sum(_known(rows, "rollout/tokens")),
        "tokens_per_s": average("rollout/tokens_per_s", generated),
        "step_s": average("timing_s/step", generated),
        "rollout_s": average("timing_s/rollout", generated),
        "reward_s": average("timing_s/reward", generated),
        "train_s": average("timing_s/train", generated),
        "mismatch_kl": average("mismatch_kl/mean"),
        "dropped": sum(_known(rows, "rollout/dropped")),
    }


def filtering(rows: Sequence[Row]) -> dict[str, float] | None:
    """Sums of the groups that dynamic sampling dropped for want of a signal. None: the run has none."""
    if not _known(rows, "rollout/filtered_groups"):
        return None
    names = ("filtered_groups", "refilled_groups", "unreplaced_groups")
    return {name: sum(_known(rows, f"rollout/{name}")) for name in names}


def drafting(rows: Sequence[Row]) -> dict[str, float | None] | None:
    """Sums of `rollout/spec_*`, without that prefix, and their ratios. None if the engine did not draft; a ratio is
    None if its divisor is 0."""
    if not _known(rows, "rollout/spec_forwards"):
        return None
    names = ("forwards", "drafted", "accepted", "timed_s", "saved_s", "draft_s")
    sums = {name: sum(_known(rows, f"rollout/spec_{name}")) for name in names}
    per_forward = _ratio(sums["accepted"], sums["forwards"])
    return {
        **sums,
        "accept_length": None if per_forward is None else 1 + per_forward,
        "accept_rate": _ratio(sums["accepted"], sums["drafted"]),
        "net_speedup": _ratio(sums["timed_s"] + sums["saved_s"], sums["timed_s"]),
    }


def why_little(rows: Sequence[Row]) -> str:
    """Why drafts saved little time, as far as these rows show it; empty: they saved much, or there were none."""
    found = drafting(rows)
    if found is None or (found["net_speedup"] or 0.0) >= MODEST:
        return ""
    lengths = _known(rows, "response_length/mean")
    if len(epochs(rows)) < 2:
        return "in a first epoch there are no earlier responses to draft from"
    if lengths and mean(lengths) < SHORT:
        return f"responses of {mean(lengths):.0f} tokens leave little to draft"
    if (found["accept_rate"] or 0.0) < ALIKE:
        return "responses differed much from those of the epoch before"
    return ""


def epochs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """In order. `reward`, `response_length` and `rollout_s` are means over the steps."""
    counted = [row for row in rows if row.get("training/epoch") is not None]
    return [_epoch(int(epoch), list(own)) for epoch, own in groupby(counted, lambda row: row["training/epoch"])]


def _epoch(epoch: int, rows: list[Row]) -> dict[str, Any]:
    drafted = drafting(rows) or {}
    seconds = _known(rows, "timing_s/rollout")
    return {
        "epoch": epoch,
        "first_step": rows[0]["step"],
        "steps": len(rows),
        "reward": _mean(_known(rows, "reward/mean")),
        "response_length": _mean(_known(rows, "response_length/mean")),
        "accept_length": drafted.get("accept_length"),
        "accept_rate": drafted.get("accept_rate"),
        "net_speedup": drafted.get("net_speedup"),
        "rollout_s": _mean(seconds),
        "tokens_per_s": _ratio(sum(_known(rows, "rollout/tokens")), sum(seconds)),
    }


def _known(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
