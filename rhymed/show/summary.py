"""The end of a run: a summary for the terminal, the numbers as JSON, the curves as a picture.

`summary` is the text and the numbers; `draw` the picture.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from rhymed.core.config import Config
from rhymed.core.run.checkpoint import best
from rhymed.core.run.folder import read_evaluations, read_metrics
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.metrics import Row, drafting, epochs, filtering, totals, unlearned, why_little
from rhymed.core.run.timeline import Timeline
from rhymed.core.text import counted, number


def summary(config: Config, where: RunLayout, elapsed_s: float) -> str:
    """Text for the terminal; also writes `summary.json` and, with matplotlib, `reward.png` into the run's folder."""
    rows, evaluations = read_metrics(where), read_evaluations(where)
    if config.trainer.steps == 0:
        return _evaluation_summary(config, where)
    if not rows:
        return f"no step was trained; logs are in {where.folder / 'logs'}"
    elapsed_s += _elapsed_before(where)
    numbers, drafted = totals(rows, elapsed_s), drafting(rows)
    known = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    filtered = filtering(rows)
    numbers_json = {**known, "drafting": drafted, "filtering": filtered, "epochs": epochs(rows)}
    (where.folder / "summary.json").write_text(json.dumps(numbers_json, indent=2) + "\n")
    picture = draw(rows, where.folder / "reward.png", title=config.run.name, evaluations=evaluations)
    lines = [
        "",
        f"{len(rows)} steps in {elapsed_s / 60:.1f} min, {numbers['tokens']:.0f} response tokens",
        _learned(config, rows, numbers),
        f"per step {numbers['step_s']:.1f} s: rollout {numbers['rollout_s']:.1f}, reward {numbers['reward_s']:.1f},"
        f" train {numbers['train_s']:.1f}",
        f"rollout  {numbers['tokens_per_s']:.0f} tokens/s, mismatch_kl {number(known['mismatch_kl'], '.5f')},"
        f" dropped samples {numbers['dropped']:.0f}",
        *_unlearned(rows),
        *_drafts(drafted, why_little(rows)),
        *_filters(filtered),
        *_progress(evaluations),
        *_best(where),
        f"picture  {picture}" if picture else "picture  none: matplotlib is not installed",
        f"folder   {where.folder}",
    ]
    return "\n".join(lines)


def _learned(config: Config, rows: list[dict[str, Any]], numbers: dict[str, float]) -> str:
    """The course of the reward; with `sft` that of the loss, as its answers are the dataset's."""
    edge = int(numbers["edge"])
    if config.trainer.algorithm == "sft":
        losses = [row["actor/loss"] for row in rows if "actor/loss" in row]
        first, last = (sum(part) / len(part) if part else math.nan for part in (losses[:edge], losses[-edge:]))
        return f"loss     first {edge} steps {first:.3f}   last {edge} steps {last:.3f}   change {last - first:+.3f}"
    first, last = numbers["reward_first"], numbers["reward_last"]
    if math.isnan(numbers["reward_gain"]):
        return f"reward   none: no sample has one, {numbers['dropped']:.0f} were dropped"
    return f"reward   first {edge} steps {first:.3f}   last {edge} steps {last:.3f}   gain {last - first:+.3f}"


def _drafts(found: dict[str, float | None] | None, why: str) -> list[str]:
    """`why`: they saved little."""
    reason = [f"         {why}: see docs/how.md, Where drafts help"] if why else []
    if not found:
        return []
    if not found["drafted"]:
        return ["drafts   none", *reason] if why else []
    line = f"drafts   {found['accept_length']:.2f} tokens per forward, {found['accept_rate']:.0%} accepted"
    if found["net_speedup"] is None:
        return [line, *reason]
    saved, spent = f"{found['saved_s']:.1f} s saved", f"{found['draft_s']:.1f} s spent"
    return [f"{line}, about {found['net_speedup']:.2f}x: {saved}, {spent}", *reason]


def _unlearned(rows: list[dict[str, Any]]) -> list[str]:
    steps = Counter(filter(None, map(unlearned, rows)))
    return [f"WARNING  {count} of {counted(len(rows), 'step')}: {why}" for why, count in steps.items()]


def _filters(found: dict[str, float] | None) -> list[str]:
    if not found:
        return []
    dropped, replaced, left = (found[f"{kind}_groups"] for kind in ("filtered", "refilled", "unreplaced"))
    more = f", {left:.0f} could not be replaced" if left else ""
    return [f"groups   {dropped:.0f} had no signal and were dropped, {replaced:.0f} replaced them{more}"]


def _elapsed_before(where: RunLayout) -> float:
    """Seconds of the earlier parts of a resumed run."""
    try:
        return float(json.loads((where.folder / "summary.json").read_text())["elapsed_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def worked_s(line: Timeline, since: float) -> float:
    """Seconds covered by spans after `since`, without the pauses between the parts of a resumed run."""
    times = sorted({round(span.t) for span in line.spans if span.t > since})
    return float(sum(after - before for before, after in pairwise(times) if after - before < 60))


def evaluation(config: Config, where: RunLayout) -> dict[str, Any]:
    """Metrics of the newest evaluation by dataset, named as in docs/metrics.md without `val/<dataset>/`."""
    rows = read_evaluations(where)
    row = rows[-1] if rows else {}
    datasets = {
        one.name: {
            key.removeprefix(f"val/{one.name}/"): value
            for key, value in row.items()
            if key.startswith(f"val/{one.name}/")
        }
        for one in config.eval.datasets
    }
    return {"model": config.model.path, "samples": config.eval.samples, "datasets": datasets}


def _evaluation_summary(config: Config, where: RunLayout) -> str:
    """The summary of a run that only evaluates; also writes `eval.json`."""
    found = evaluation(config, where)
    (where.folder / "eval.json").write_text(json.dumps(found, indent=2) + "\n")
    lines = ["", f"model    {found['model']}"]
    for name, row in found["datasets"].items():
        if not row:
            lines.append(f"{name}: not evaluated; logs are in {where.folder / 'logs'}")
            continue
        lines.append(f"{name}: {row['prompts']:.0f} prompts, {found['samples']} responses each")
        if row["dropped"]:
            lines.append(
                f"  {row['dropped']:.0f} samples were dropped and do not count; logs: {where.folder / 'logs'}"
            )
        shown = {key: value for key, value in row.items() if key not in ("prompts", "dropped")}
        lines += [f"  {key.removeprefix('acc/'):<22}{value:9.3f}" for key, value in shown.items()]
    return "\n".join([*lines, f"folder   {where.folder}"])


def _best(where: RunLayout) -> list[str]:
    found = best(where.folder)
    if found is None:
        return []
    return [f"best     step {found.checkpoint.step}, held-out reward {found.reward:.3f}: {found.checkpoint.folder}"]


def _progress(evaluations: list[dict[str, Any]]) -> list[str]:
    """First and last evaluation of every held-out dataset."""
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    shown = ("/acc/mean@", "/reward/mean")
    keys = [key for key in last if key.startswith("val/") and any(part in key for part in shown) and key in first]
    return [
        f"{key:<24} {first[key]:.3f} (v{first['step']}) -> {last[key]:.3f} (v{last['step']})" for key in sorted(keys)
    ]


# The main curves of a run in one picture (reward.png), drawn with matplotlib where it is installed.

SMOOTH = 5  # steps
MOST_LINES = 40  # epochs beyond which their boundaries would cover the curves
BLUE, PALE, GREEN, PURPLE, ORANGE, GREY = "#1f5f8b", "#9db4c8", "#6a994e", "#8e5572", "#d08c3f", "#888888"


def draw(rows: Sequence[Row], path: Path, *, title: str, evaluations: Sequence[Row] = ()) -> Path | None:
    """Reward, response length, drafting (if there was any) and seconds over the steps. None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    drafted = any(row.get("rollout/spec_drafted") for row in rows)
    panels = [
        ("reward", reward),
        ("response tokens", lengths),
        *([("plain = 1", gain)] if drafted else []),
        ("seconds", seconds),
    ]
    figure = Figure(figsize=(8, 3 + 4 / 3 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=[2, *[1] * (len(panels) - 1)])
    for (label, panel), axis in zip(panels, axes, strict=True):
        panel(axis, rows)
        if panel is reward:
            evaluation_curves(axis, evaluations, linestyle="--")
        axis.set(ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(frameon=False, ncols=3)
        epoch_boundaries(axis, rows)
    axes[0].set(title=title)
    axes[-1].set(xlabel="step")
    figure.savefig(path, dpi=120)
    return path


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


def gain(axis: Any, rows: Sequence[Row]) -> bool:
    """Both are 1 in plain decoding."""
    axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    there = _line(axis, rows, "rollout/spec_accept_length", color=PURPLE, label="tokens per forward")
    return _line(axis, rows, "rollout/spec_net_speedup", color=ORANGE, label="net speed-up, estimated") or there


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
