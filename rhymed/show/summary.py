"""The end of a run: a summary for the terminal, and the numbers as JSON. The curves are in `report.html`."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from rhymed.core.config import Config
from rhymed.core.run.checkpoint import best
from rhymed.core.run.folder import read_evaluations, read_metrics
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.metrics import drafting, epochs, filtering, totals, unlearned
from rhymed.core.run.timeline import Progress
from rhymed.core.text import counted, number

MODEST = 1.3  # a speed-up below this has a reason that people look for


def summary(config: Config, where: RunLayout) -> str:
    """Text for the terminal; also writes `summary.json` into the run's folder."""
    rows, evaluations = read_metrics(where), read_evaluations(where)
    if config.trainer.steps == 0:
        return _evaluation_summary(config, where)
    if not rows:
        return f"no step was trained; logs are in {where.folder / 'logs'}"
    progress = Progress()
    progress.read(where.folder)
    elapsed_s = progress.times(None).elapsed_s
    numbers, drafted = totals(rows, elapsed_s), drafting(rows)
    known = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    filtered = filtering(rows)
    numbers_json = {**known, "drafting": drafted, "filtering": filtered, "epochs": epochs(rows)}
    (where.folder / "summary.json").write_text(json.dumps(numbers_json, indent=2) + "\n")
    lines = [
        "",
        f"{len(rows)} steps in {elapsed_s / 60:.1f} min, {numbers['tokens']:.0f} response tokens",
        _learned(config, rows, numbers),
        f"per step {numbers['step_s']:.1f} s: rollout {numbers['rollout_s']:.1f}, reward {numbers['reward_s']:.1f},"
        f" train {numbers['train_s']:.1f}",
        f"rollout  {numbers['tokens_per_s']:.0f} tokens/s, mismatch_kl {number(known['mismatch_kl'], '.5f')},"
        f" dropped samples {numbers['dropped']:.0f}",
        *_unlearned(rows),
        *_drafts(drafted),
        *_filters(filtered),
        *_progress(evaluations),
        *_best(where),
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


def _drafts(found: dict[str, float | None] | None) -> list[str]:
    if not found:
        return []
    modest = (found["net_speedup"] or 0.0) < MODEST
    hint = ["         little: docs/how.md says where drafts help"] if modest else []
    if not found["drafted"]:
        return ["drafts   none", *hint]
    line = f"drafts   {found['accept_length']:.2f} tokens per forward, {found['accept_rate']:.0%} accepted"
    if found["net_speedup"] is not None:
        saved, spent = f"{found['saved_s']:.1f} s saved", f"{found['draft_s']:.1f} s spent"
        line += f", about {found['net_speedup']:.2f}x: {saved}, {spent}"
    return [line, *hint]


def _unlearned(rows: list[dict[str, Any]]) -> list[str]:
    steps = Counter(filter(None, map(unlearned, rows)))
    return [f"WARNING  {count} of {counted(len(rows), 'step')}: {why}" for why, count in steps.items()]


def _filters(found: dict[str, float] | None) -> list[str]:
    if not found:
        return []
    dropped, replaced, left = (found[f"{kind}_groups"] for kind in ("filtered", "refilled", "unreplaced"))
    more = f", {left:.0f} could not be replaced" if left else ""
    return [f"groups   {dropped:.0f} had no signal and were dropped, {replaced:.0f} replaced them{more}"]


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
