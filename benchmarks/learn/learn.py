"""Trains the same task by every algorithm, one run after the other, and compares what they learned and what it cost.

Every run is a child `rhymed run` in a folder of its own. A finished run is not repeated, so the benchmark can be
interrupted and continued; delete a run's folder to repeat it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.child import train
from benchmarks.learn.variants import Variant, names, pairs
from rhymed.core.config.load import load_config, load_run
from rhymed.core.run.folder import layout_of_folder, read_evaluations, read_metrics
from rhymed.core.run.metrics import totals

CONFIG = Path("configs/quickstart.toml")
OUT = Path("runs/learn")
HELD_OUT = ("eval.every=14", "eval.samples=4")
HELD_OUT_ROWS = 64
QUICK = ("trainer.steps=2", "eval.every=0")
GAIN = 0.3  # of the mean reward: a variant that gains less has not learned the quickstart's task

Result = dict[str, Any]


def run(
    quick: bool,
    config: Path = CONFIG,
    algorithms: Sequence[str] | None = None,
    seeds: int | None = None,
    out: Path = OUT,
) -> dict[str, Any]:
    """`algorithms`: names as in `names()`. `out`: a folder for the runs, `learn.json` and `learn.png`."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for variant, seed in pairs(algorithms or (names()[:2] if quick else names()), 1 if quick else seeds):
        results.append(_result(out, config, variant, seed, QUICK if quick else ()))
        (out / "learn.json").write_text(json.dumps(results, indent=1) + "\n")
        print(_line(results[-1]), flush=True)
    _draw(results, out)
    return {"runs": results, "good": all(row["finished"] for row in results)}


def _result(out: Path, config: Path, variant: Variant, seed: int, more: Sequence[str]) -> Result:
    """Of a run that is made now, or that is there and finished."""
    folder = out / f"{config.stem}-{variant.name.replace('+', '-')}-{seed}"
    cost = folder / "cost.json"
    if not cost.is_file():
        settings = [*_held_out(config), *variant.settings, f"run.seed={seed}", *more]
        peak_gib, seconds = _train(folder, config, settings)
        cost.write_text(json.dumps({"peak_gib": peak_gib, "elapsed_s": seconds}) + "\n")
    return {"algorithm": variant.name, "seed": seed, "run": str(folder)} | _read(folder, json.loads(cost.read_text()))


def _held_out(config: Path) -> tuple[str, ...]:
    """A configuration with an evaluation keeps it; a generated task is evaluated on held-out entries of its own."""
    data = (loaded := load_config(config)).data
    if loaded.eval.datasets or data.source != "reasoning_gym":
        return ()
    rows = {"name": "held-out", "source": data.source, "task": data.task, "args": data.args, "size": HELD_OUT_ROWS}
    return (*HELD_OUT, f"eval.datasets=[{_inline(rows)}]")


def _inline(value: Any) -> str:
    """As TOML in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_inline(entry)}' for key, entry in value.items())}}}"
    return json.dumps(value)


def _train(folder: Path, config: Path, settings: Sequence[str]) -> tuple[float, float]:
    """(peak memory of the trainer in GiB, seconds of the run). Raises `RhymedError` if the run fails."""
    started, peak_gib = time.monotonic(), 0.0

    def look(pid: int) -> None:
        nonlocal peak_gib
        peak_gib = max(peak_gib, _trainer_peak_gib(pid))

    train(folder, config, ("run.report=false", "net.http=", *settings), look)
    return peak_gib, time.monotonic() - started


def _trainer_peak_gib(pid: int) -> float:
    """Largest resident memory so far of the trainer among a process's descendants."""
    peak = 0.0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            if "trainer" in " ".join(child.cmdline()).split():  # a title of its own once it is ready
                status = Path(f"/proc/{child.pid}/status").read_text()
                peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) / 2**20)
    except (psutil.Error, OSError, IndexError):
        return peak  # it ended meanwhile
    return peak


def _read(folder: Path, cost: Result) -> Result:
    layout, config = layout_of_folder(folder), load_run(folder)
    rows, evaluations = read_metrics(layout), read_evaluations(layout)
    sums = totals(rows, cost["elapsed_s"])
    held = [value for row in evaluations for key, value in row.items() if key.endswith("/reward/mean")]
    return {
        "lr": config.trainer.lr,
        "steps": len(rows),
        "finished": config.trainer.steps in (None, len(rows)) and bool(rows),
        "rewards": [row.get("reward/mean") for row in rows],
        "reward_first": sums["reward_first"],
        "reward_last": sums["reward_last"],
        "gain": sums["reward_gain"],
        "held_out_first": held[0] if held else None,
        "held_out_last": held[-1] if held else None,
        "step_s": median([row["timing_s/step"] for row in rows]),
        "train_s": median([row["timing_s/train"] for row in rows]),
        "peak_gib": cost["peak_gib"],
        "elapsed_s": cost["elapsed_s"],
    }


def _line(row: Result) -> str:
    held = "" if row["held_out_last"] is None else f" | {row['held_out_first']:.3f} -> {row['held_out_last']:.3f}"
    return (
        f"{row['algorithm']:<22} seed {row['seed']} | {row['reward_first']:.3f} -> {row['reward_last']:.3f}"
        f" ({row['gain']:+.3f}){held} | {row['step_s']:.1f} s per step, {row['train_s']:.1f} s of training"
        f" | {row['peak_gib']:.2f} GiB"
    )


def _draw(results: Sequence[Result], out: Path) -> None:
    """`learn.png`: mean reward per step, a panel per algorithm, a line per seed. Nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    shown = list(dict.fromkeys(row["algorithm"] for row in results))
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.2 * lines))
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis, name in zip(axes, shown, strict=False):
        for row in results:
            if row["algorithm"] == name:
                axis.plot(range(1, len(row["rewards"]) + 1), row["rewards"], linewidth=1.2)
        axis.set_title(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("mean reward", fontsize=9)
    figure.tight_layout()
    figure.savefig(out / "learn.png", dpi=110)
