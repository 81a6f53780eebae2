"""Whole training runs of each variant, in turns: seconds of a step, of its rollout and of its training.

A finished run is not repeated, so the benchmark can be interrupted and continued. The first step of a run is left
out: it has the engine's start and its first compilations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import train
from benchmarks.twins import compare_runs
from benchmarks.whole.variants import VARIANTS, Variant
from rhymed.core.run.folder import layout_of_folder, read_metrics

TIMES = ("timing_s/step", "timing_s/rollout", "timing_s/train")
SETTINGS = ("data.limit=64", "eval.every=0", "run.report=false", "net.http=")
QUICK = ("data.limit=2", "rollout.prompts_per_step=2", "rollout.group_size=2", "trainer.epochs=2")

Row = dict[str, Any]


def measure(out: Path, config: Path, rounds: int, variants: Sequence[Variant], more: Sequence[str]) -> list[Row]:
    """`more`: settings of all runs. Raises `RhymedError` if a run fails."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for number in range(rounds):
        turn = variants if number % 2 == 0 else variants[::-1]  # what grows warm or slow favours nobody
        for variant in turn:
            folder = out / f"{variant.name.replace(' ', '-')}-{number}"
            if not (folder / "end.json").is_file():
                train(folder, config, (*SETTINGS, *more, *variant.settings))
            rows.append({"variant": variant.name, "round": number, "run": str(folder), **_read(folder)})
            print(_line(rows[-1]), flush=True)
    return rows


def _read(folder: Path) -> Row:
    steps = read_metrics(layout_of_folder(folder))[1:]
    seconds = {key.removeprefix("timing_s/") + "_s": sum(row[key] for row in steps) for key in TIMES}
    return {
        "steps": len(steps),
        **seconds,
        "tokens": int(sum(row["rollout/tokens"] for row in steps)),
        "accept_length": median([row.get("rollout/spec_accept_length", 1.0) for row in steps]),
    }


def _line(row: Row) -> str:
    return (
        f"{row['variant']:<12} round {row['round']} | {row['step_s']:7.1f} s, rollout {row['rollout_s']:7.1f},"
        f" training {row['train_s']:7.1f} | {row['tokens']} tokens in {row['steps']} steps,"
        f" {row['accept_length']:.2f} tokens per forward"
    )


def ratios(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Variant -> times as fast as `plain` of the same round, one for each round."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {})[row["variant"]] = row["step_s"]
    found: dict[str, list[float]] = {}
    for times in by_round.values():
        for variant, seconds in times.items():
            if "plain" in times:
                found.setdefault(variant, []).append(times["plain"] / seconds)
    return found


def compared(rows: Sequence[Row]) -> dict[str, str]:
    """Run -> how it compares to `plain` of the same round: samples and weights; only runs at staleness 0
    whose steps have the same prompts."""
    plain = {row["round"]: Path(row["run"]) for row in rows if row["variant"] == VARIANTS[0].name}
    rounding = {variant.name for variant in VARIANTS if variant.overlap}
    strict = {variant.name for variant in VARIANTS if not variant.max_staleness and variant.sampler == "uniform"}
    found = {}
    for row in rows:
        folder = Path(row["run"])
        if row["variant"] in strict and row["round"] in plain and folder != plain[row["round"]]:
            result = compare_runs(plain[row["round"]], folder)
            rounded = " (its weights differ by rounding)" if row["variant"] in rounding else ""
            same = f"{result.equal} of {result.both} steps trained on the same samples{rounded}"
            found[folder.name] = "; ".join([same, *result.wrong])
    return found


def table(found: Mapping[str, Sequence[float]]) -> list[str]:
    """In Markdown."""
    lines = ["| | times as fast as plain: median (min-max) |", "|---|---|"]
    for name, values in found.items():
        spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
        lines.append(f"| {name} | {median(values):.2f}{spread} |")
    return lines
