"""Small arrays between host and device, through pinned memory: nothing waits but `fetch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray


def upload(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Does not wait: torch keeps the pinned memory until it is copied. On a CPU the tensor has `values`' memory."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def fetch(values: torch.Tensor) -> torch.Tensor:
    """On the host, after one pinned transfer; waits until the device has computed it."""
    return begin(values)()


def begin(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begins to copy `values` to the host, as they are now. The returned function waits for the copy."""
    if values.device.type == "cpu":
        return lambda: values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.Event(values.device)
    done.record()

    def wait() -> torch.Tensor:
        done.synchronize()
        return host

    return wait
