"""Whole runs on one GPU that engine and trainer share in turns, with drafts and without, and their samples."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import train
from benchmarks.gpu import models
from benchmarks.gpu.part import Recorder
from benchmarks.twins import compare_runs
from rhymed.core.run.folder import layout_of_folder, read_metrics

CONFIG = Path(__file__).parents[2] / "configs/arithmetic.toml"
KEPT = (
    "timing_s/step",
    "timing_s/rollout",
    "timing_s/train",
    "timing_s/publish",
    "timing_s/fetch",
    "rollout/tokens",
    "rollout/tokens_per_s",
    "perf/train_tokens_per_s",
    "mismatch_kl/mean",
    "reward/mean",
    "actor/grad_norm",
    "rollout/spec_accept_length",
    "rollout/spec_net_speedup",
    "length/mean",
)
ON_GPU = (
    "model.dtype=bfloat16",
    "model.train_dtype=bfloat16",
    "rollout.gpu_memory=0.3",
    "rollout.max_concurrency=128",
    "rollout.max_response_length=768",
    "data.limit=32",
    "trainer.epochs=3",
    "trainer.steps=6",
)
SMALL = (
    "rollout.prompts_per_step=2",
    "rollout.group_size=2",
    "rollout.max_response_length=16",
    "rollout.kv_cache_gib=0.25",
    "data.limit=2",
    "trainer.epochs=2",
    "trainer.steps=2",
)
ALL = ("schedule.colocate=true", "trainer.checkpoint_every=3", "eval.every=0", "run.report=false", "net.http=")
MADE_UP = ("reward.scorer=regex", r"reward.args.pattern=[a-e]\s*$")  # random weights give no right answers


def record(record: Recorder) -> None:
    assert record.out is not None
    if not CONFIG.is_file():
        record.emit("runs", skipped=f"{CONFIG} is missing: only a checkout has it")
        return
    folder, name = models.policy(record.out / "models", small=record.small)
    model = folder.resolve()
    settings = [f"model.path={model}", f"data.path={model}/train.jsonl", "eval.datasets=[]", *ALL]
    settings += [*ON_GPU * record.gpu, *SMALL * record.small, *MADE_UP * (name != "bench policy")]
    runs = [record.out / "runs" / drafts for drafts in ("history", "none")]
    for run in runs:
        record.check(f"drafts {run.name}", partial(_run, run, name, [*settings, f"drafts.method={run.name}"]))
    if all((run / "end.json").is_file() for run in runs):
        record.check("samples with drafts against those without", lambda: compare_runs(runs[1], runs[0]).json())


def _run(folder: Path, model: str, settings: Sequence[str]) -> dict[str, Any]:
    """[the first step's value, the median of the others, the last] of each metric."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    train(folder, CONFIG, settings)
    rows = read_metrics(layout_of_folder(folder))
    found: dict[str, Any] = {"model": model, "steps": len(rows)}
    for key in KEPT:
        if values := [row[key] for row in rows if isinstance(row.get(key), int | float)]:
            found[key] = [round(one, 4) for one in (values[0], median(values[1:] or values), values[-1])]
    return found
