"""Small arrays between host and device, through pinned memory: nothing waits but `fetch`."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def upload(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Does not wait: torch keeps the pinned memory until it is copied. On a CPU the tensor has `values`' memory."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def fetch(values: torch.Tensor) -> torch.Tensor:
    """On the host, after one pinned transfer; waits until the device has computed it."""
    if values.device.type == "cpu":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.Event(values.device)
    done.record()
    done.synchronize()
    return host
