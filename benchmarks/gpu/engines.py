"""Tokens per second of engines in alternation (`rhymed bench spec`), and whether drafts change tokens.

vLLM with its own choices (`stock`, on a GPU with its second model runner), with keyed sampling, with drafts from
history, and with the right drafts (`again`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.part import Recorder
from rhymed.start.bench import spec

KEPT = (
    "tokens_per_s",
    "ratio",
    "ratio_min",
    "ratio_max",
    "tokens_a_step",
    "accept_length",
    "accept_rate",
    "net_speedup",
    "draft_share",
    "same_tokens",
    "compared_tokens",
)
LONGEST = 512  # tokens of a response


def engines(record: Recorder) -> None:
    if record.small:
        measure(record, "engines", ["keyed", "history"], [4])
    else:
        measure(record, "engines", ["stock", "keyed", "history", "again"], [16, 64, 1, 256], rounds=2)


def exact(record: Recorder) -> None:
    """On a processor, which has no batch-invariant kernels, runs float32 only."""
    methods = ["keyed", "history", *["again"] * (not record.small)]
    batches = [4] if record.small else [16, 64]
    measure(record, "float32", methods, batches, dtype="float32")
    if record.gpu and not record.late:
        measure(record, "batch-invariant kernels", methods, batches, exact="tokens")


def measure(
    record: Recorder,
    label: str,
    methods: Sequence[str],
    batches: Sequence[int],
    *,
    rounds: int = 1,
    dtype: str = "",
    exact: str = "",
    more: dict[str, Any] | None = None,
) -> None:
    """Writes a line for each engine, for epoch 1 and for each batch size. `more`: arguments of vllm.LLM for all
    engines."""
    assert record.out is not None
    folder, name = models.policy(record.out / "models", small=record.small)
    longest = 16 if record.small else LONGEST
    workload = models.workload(folder.resolve(), name, longest)
    place = spec.place_of(record.device, dtype, Path(workload.model), len(methods), batches, exact)
    bench = spec.Bench(workload, methods, place=place, more=more)
    try:
        abouts = bench.each(methods, lambda method, process: process.about())
        for method in methods:
            found = abouts.get(method)
            record.emit(f"{label}: {method} starts", **({"ok": True, **found} if found else _failure(bench, method)))
        prompts = 2 if record.small else spec.past(batches)
        if record.check(f"{label}: epoch 1", lambda: _epoch(bench, prompts)) is None:
            return
        for batch in batches:
            lost = set(bench.failed)
            record.check(f"{label}: batch {batch}", partial(_batch, bench, batch, rounds))
            for method in set(bench.failed) - lost:
                record.emit(f"{label}: {method} at batch {batch}", **_failure(bench, method))
    finally:
        bench.close()


def _failure(bench: spec.Bench, method: str) -> dict[str, Any]:
    return {"ok": False, "error": bench.failed[method][-900:]}


def _epoch(bench: spec.Bench, prompts: int) -> dict[str, Any]:
    bench.first_epoch(1.0, prompts)
    lengths = sorted(len(one) for past in bench.history[1.0].values() for one in past)
    return {
        "model": bench.workload.name,
        "responses": len(lengths),
        "median": lengths[len(lengths) // 2],
        "longest": lengths[-1],
    }


def _batch(bench: spec.Bench, batch: int, rounds: int) -> dict[str, Any]:
    rows = spec.measure(bench, spec.Cell(batch, 1.0, 2), rounds)
    return {method: {key: round(row[key], 3) for key in KEPT} for method, row in rows.items()}
