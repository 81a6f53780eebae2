"""What a worker uses of its machine, as its heartbeats report it."""

from __future__ import annotations

from rhymed.messages.base import Part
from rhymed.messages.fields import Amount, Count, Word, Worded


class GpuUsage(Part, Worded, frozen=True, kw_only=True):
    """One device, with all processes that use it. None: the driver does not know it."""

    index: Count  # as nvidia-smi counts
    kind: Word = ""  # e.g. "NVIDIA H200"
    utilization: Amount | None = None  # share of the driver's last sample period in which a kernel ran
    memory: Count | None = None  # bytes in use
    memory_total: Count | None = None  # bytes
    celsius: Amount | None = None


class Usage(Part, frozen=True, kw_only=True):
    """Of a worker's process and all its descendants, and of the GPUs that it may use."""

    cpu: Amount  # processors in use: seconds of CPU per second
    memory: Count  # bytes in RAM that no other process shares and that are no part of a file
    processes: Count = 1
    gpus: list[GpuUsage] = []
    failures: Count = 0  # calls of NVML that failed, since the process started
