"""What stands at the end of a run: a summary in words, the numbers as JSON, the reward curve as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from rhymed.config import Config
from rhymed.places import Places
from rhymed.runs import read_evaluations, read_metrics

EDGE_STEPS = 5  # the summary compares the mean of this many first and last steps


def summary(config: Config, where: Places, elapsed_s: float) -> str:
    """Text for the terminal; also writes `summary.json` and, with matplotlib, `reward.png` into the run's folder."""
    rows, evaluations = read_metrics(where), read_evaluations(where)
    if config.trainer.steps == 0:
        return _graded(config, where)
    if not rows:
        return f"no step was trained; logs are in {where.folder / 'logs'}"
    elapsed_s += _elapsed_before(where)
    numbers = totals(rows, elapsed_s)
    (where.folder / "summary.json").write_text(json.dumps(numbers, indent=2) + "\n")
    picture = draw(rows, where.folder / "reward.png", title=config.run.name, evaluations=evaluations)
    lines = [
        "",
        f"{len(rows)} steps in {elapsed_s / 60:.1f} min, {numbers['tokens']:.0f} response tokens",
        f"reward   first {numbers['edge']} steps {numbers['reward_first']:.3f}   last {numbers['edge']} steps"
        f" {numbers['reward_last']:.3f}   gain {numbers['reward_gain']:+.3f}",
        f"a step   {numbers['step_s']:.1f} s: rollout {numbers['rollout_s']:.1f}, reward {numbers['reward_s']:.1f},"
        f" train {numbers['train_s']:.1f}",
        f"rollout  {numbers['tokens_per_s']:.0f} tokens/s, mismatch_kl {numbers['mismatch_kl']:.5f},"
        f" dropped samples {numbers['dropped']:.0f}",
        *_progress(evaluations),
        f"picture  {picture}" if picture else "picture  none: matplotlib is not installed",
        f"folder   {where.folder}",
    ]
    return "\n".join(lines)


def _elapsed_before(where: Places) -> float:
    """Seconds of the parts that a resumed run had before."""
    try:
        return float(json.loads((where.folder / "summary.json").read_text())["elapsed_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def evaluation(config: Config, where: Places) -> dict[str, Any]:
    """What the newest evaluation found, by dataset: metrics as in docs/metrics.md, without `val/<dataset>/`."""
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


def _graded(config: Config, where: Places) -> str:
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


def totals(rows: list[dict[str, Any]], elapsed_s: float) -> dict[str, float]:
    """The run in a few numbers. `rows` are the steps' metrics, in order."""
    rewards = [row["reward/mean"] for row in rows if row.get("reward/mean") is not None]
    edge = max(1, min(EDGE_STEPS, len(rewards) // 2))
    first = mean(rewards[:edge]) if rewards else float("nan")
    last = mean(rewards[-edge:]) if rewards else float("nan")

    def average(key: str) -> float:
        values = [row[key] for row in rows if row.get(key) is not None]
        return mean(values) if values else float("nan")

    return {
        "steps": len(rows),
        "elapsed_s": elapsed_s,
        "edge": edge,
        "reward_first": first,
        "reward_last": last,
        "reward_gain": last - first,
        "tokens": sum(row.get("rollout/tokens", 0.0) for row in rows),
        "tokens_per_s": average("rollout/tokens_per_s"),
        "step_s": average("timing_s/step"),
        "rollout_s": average("timing_s/rollout"),
        "reward_s": average("timing_s/reward"),
        "train_s": average("timing_s/train"),
        "mismatch_kl": average("mismatch_kl/mean"),
        "dropped": sum(row.get("rollout/dropped", 0.0) for row in rows),
    }


def draw(
    rows: list[dict[str, Any]], path: Path, *, title: str, evaluations: list[dict[str, Any]] | None = None
) -> Path | None:
    """Reward, response length and time a step over the steps. None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(8, 7), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2, 1, 1])
    steps = [row["step"] for row in rows]

    def column(key: str) -> list[float]:
        return [row.get(key, float("nan")) for row in rows]

    rewards = column("reward/mean")
    smooth = [mean(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
    top.plot(steps, rewards, color="#9db4c8", marker=".", label="step")
    top.plot(steps, smooth, color="#1f5f8b", linewidth=2, label="mean of 5 steps")
    curves = {
        key for row in evaluations or [] for key in row if key.startswith("val/") and key.endswith("/reward/mean")
    }
    for key in sorted(curves | {key for row in evaluations or [] for key in row if "/acc/mean@" in key}):
        known = [row for row in evaluations or [] if row.get(key) is not None]
        top.plot([row["step"] for row in known], [row[key] for row in known], marker="o", linestyle="--", label=key)
    top.set(ylabel="reward", title=title)
    top.legend(frameon=False)
    middle.plot(steps, column("response_length/mean"), color="#6a994e")
    middle.set(ylabel="response tokens")
    phases = ("rollout", "reward", "train")
    bottom.stackplot(steps, *(column(f"timing_s/{phase}") for phase in phases), labels=phases, alpha=0.8)
    bottom.set(ylabel="seconds", xlabel="step")
    bottom.legend(frameon=False, loc="upper right", ncols=3)
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return path
