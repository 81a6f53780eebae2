"""`rhymed bench sampler`: both parts, and a sentence where one cannot be measured."""

from __future__ import annotations

from typing import Any

from rhymed.bench.sampling import cpu, gpu

NO_GPU = "no GPU here: the part that measures the kernels on a GPU is left out"


def run(quick: bool) -> dict[str, Any]:
    """`cpu`: microseconds per row of both samplers; `gpu`: of each way to sample there, None without a GPU."""
    import torch

    result: dict[str, Any] = {"cpu": cpu.run(quick), "gpu": None}
    if torch.cuda.is_available():
        result["gpu"] = gpu.run(quick)
    else:
        print(NO_GPU)
    return result
