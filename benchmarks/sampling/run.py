"""`python -m benchmarks sampler`: on a GPU the part of `python -m benchmarks gpu`, on vLLM's platform for CPUs the
cost of keyed sampling."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.part import Recorder
from benchmarks.sampling import cpu, gpu
from rhymed.placement import gpus

NO_GPU = "no GPU here: the part that measures the kernels on a GPU is left out"
NO_CPU = "vLLM is not built for CPUs: the part that measures its samplers on a CPU is left out"


def run(quick: bool) -> dict[str, Any]:
    """`cpu`: microseconds per row of both samplers, `gpu`: whether every size was measured and had the CPU's tokens;
    None where it cannot be measured."""
    result: dict[str, Any] = {"gpu": None, "cpu": None}
    if gpus.here() is not None:
        result["gpu"] = gpu.record(Recorder("sampler", None, small=quick))
        result["good"] = result["gpu"]["good"]
    else:
        print(NO_GPU)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        result["cpu"] = cpu.run(quick)
    else:
        print(NO_CPU)
    return result
