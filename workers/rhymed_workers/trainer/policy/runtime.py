"""How torch uses a GPU in a trainer's process: deterministic kernels, and the memory that it keeps for later.

Not tried on a GPU.
"""

from __future__ import annotations

import os

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def make_deterministic() -> None:
    """For this process, before its first computation on a GPU. An operation without a deterministic kernel then
    raises torch's error, which names it."""
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS is deterministic with a fixed workspace only
    torch.use_deterministic_algorithms(True)


def free_cached(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device, where an engine needs it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
