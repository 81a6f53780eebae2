"""`python -m benchmarks whole`: plain synchronous training, then scheduling, drafts, both, both with training that
overlaps with rollouts, that with prompts of the longest responses in one step, and both at staleness 1.

`measured`: whole runs of a configuration on this machine, with the comparison of their samples. `simulated`: the same
in virtual time with many engines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.whole.measured import QUICK, compared, measure, ratios, table
from benchmarks.whole.simulated import SAMPLES, simulate
from benchmarks.whole.variants import VARIANTS
from rhymed.core import atomic
from rhymed.core.errors import ConfigError

CONFIG = Path("configs/arithmetic.toml")
OUT = Path("runs/whole")
PARTS = ("measured", "simulated")
ENGINES = (32, 1024)


def run(
    quick: bool,
    config: Path = CONFIG,
    parts: Sequence[str] = PARTS,
    methods: Sequence[str] | None = None,
    rounds: int | None = None,
    steps: int | None = None,
    workers: int | None = None,
    samples: int | None = None,
    cost: Path | None = None,
    out: Path = OUT,
) -> dict[str, Any]:
    """`methods`: names of variants. `steps`: of the simulation. `workers`: only so many engines of it. `samples`: of
    each of them, per step. `out`: a folder for the runs and `whole.json`; finished runs are not repeated. Raises
    `ConfigError`, and `RhymedError` if a run fails."""
    variants = [variant for variant in VARIANTS if not methods or variant.name in methods]
    unknown = [*(set(methods or ()) - {variant.name for variant in VARIANTS}), *(set(parts) - set(PARTS))]
    if unknown:
        names = ", ".join(variant.name for variant in VARIANTS)
        raise ConfigError(f"unknown: {', '.join(sorted(unknown))}; methods: {names}; parts: {', '.join(PARTS)}")
    result: dict[str, Any] = {}
    if "measured" in parts:
        rows = measure(out, config, rounds or (1 if quick else 2), variants, QUICK if quick else ())
        found, same = ratios(rows), compared(rows)
        print("\n".join([*table(found), *(f"{name}: {text}" for name, text in same.items())]), flush=True)
        result |= {"measured": rows, "ratios": found, "compared": same}
    if "simulated" in parts:
        engines = (workers,) if workers else (4,) if quick else ENGINES
        result["simulated"] = simulate(
            engines, steps or (6 if quick else 12), variants, cost, samples or (64 if quick else SAMPLES)
        )
    out.mkdir(parents=True, exist_ok=True)
    atomic.write(out / "whole.json", json.dumps(result, indent=1) + "\n")
    return result
