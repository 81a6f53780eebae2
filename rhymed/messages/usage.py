"""What a worker uses of its machine, as its heartbeats report it."""

from __future__ import annotations

from rhymed.messages.base import Part


class GpuUsage(Part, frozen=True, kw_only=True):
    """One device, with all processes that use it. None: the driver does not know it."""

    index: int  # as nvidia-smi counts
    kind: str = ""  # e.g. "NVIDIA H200"
    utilization: float | None = None  # share of the driver's last sample period in which a kernel ran
    memory: int | None = None  # bytes in use
    memory_total: int | None = None  # bytes
    celsius: float | None = None


class Usage(Part, frozen=True, kw_only=True):
    """Of a worker's process and all its descendants, and of the GPUs that it may use."""

    cpu: float  # processors in use: seconds of CPU per second
    memory: int  # bytes in RAM that no other process shares and that are no part of a file
    processes: int = 1
    gpus: list[GpuUsage] = []
    failures: int = 0  # calls of NVML that failed, since the process started
