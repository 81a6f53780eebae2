"""A row of the timeline has the means of what the heartbeats in its seconds report. Pure.

A row may last for hours, so only sums are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.messages import GpuUsage, Usage

GIB = 1 << 30


DIGITS = {"tokens_per_s": 1, "cpu": 2, "ram_gib": 2, "gpu": 3, "gpu_gib": 2, "gpu_celsius": 1}
"""Fields of `rhymed.run.timeline.Span`."""


class Means:
    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}  # field -> sum, number of values

    def add(self, field: str, value: float | None) -> None:
        """None: not known, and left out."""
        if value is not None:
            total, count = self._sums.get(field, (0.0, 0))
            self._sums[field] = total + value, count + 1

    def add_usage(self, usage: Usage) -> None:
        self.add("cpu", usage.cpu)
        self.add("ram_gib", usage.memory / GIB)
        self.add("gpu", _mean(gpu.utilization for gpu in usage.gpus))
        self.add("gpu_gib", _gib(usage.gpus))
        self.add("gpu_celsius", _hottest(usage.gpus))

    def read(self) -> dict[str, float]:
        """What no heartbeat knows is left out."""
        return {field: round(total / count, DIGITS[field]) for field, (total, count) in self._sums.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _gib(gpus: Iterable[GpuUsage]) -> float | None:
    known = [gpu.memory for gpu in gpus if gpu.memory is not None]
    return sum(known) / GIB if known else None


def _hottest(gpus: Iterable[GpuUsage]) -> float | None:
    return max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None)
