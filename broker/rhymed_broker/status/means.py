"""A row of the timeline has the means of the `Usage`s in its seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rhymed.messages import GpuUsage, Usage

GIB = 1 << 30


def means(usages: Sequence[Usage]) -> dict[str, float]:
    """Fields of `rhymed.run.timeline.Span`; what no usage knows is left out."""
    return {
        name: round(value, digits)
        for name, value, digits in (
            ("cpu", _mean(usage.cpu for usage in usages), 2),
            ("ram_gib", _mean(usage.memory / GIB for usage in usages), 2),
            ("gpu", _mean(_mean(gpu.utilization for gpu in usage.gpus) for usage in usages), 3),
            ("gpu_gib", _mean(_gib(usage.gpus) for usage in usages), 2),
            ("gpu_celsius", _mean(_hottest(usage.gpus) for usage in usages), 1),
        )
        if value is not None
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _gib(gpus: Iterable[GpuUsage]) -> float | None:
    known = [gpu.memory for gpu in gpus if gpu.memory is not None]
    return sum(known) / GIB if known else None


def _hottest(gpus: Iterable[GpuUsage]) -> float | None:
    return max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None)
