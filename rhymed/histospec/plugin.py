"""How keyed sampling gets into vLLM: the one module that names what it replaces there.

`install` wraps the moment at which a model runner is whole (its key-value cache is made); `attach` then gives that
runner keyed samplers and shows it to its drafter. A version of vLLM whose insides are not known is left alone, with
a warning. `additional_config={"rhymed": {"keyed": true}}` asks for keyed sampling, or refuses it; without a word it
comes with rhymed's own drafter.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np

from rhymed.histospec.settings import KEY

log = logging.getLogger(__name__)

VERSIONS = ("0.26.", "0.32.")
NEEDED = {
    "": ("sampler", "input_batch", "requests", "vllm_config", "model_config", "use_async_scheduling"),
    "input_batch": ("req_ids", "sampling_metadata", "num_tokens_no_spec", "generators", "vocab_size"),
    "sampler": ("logprobs_mode", "apply_logits_processors", "compute_logprobs", "gather_logprobs"),
    "rejection_sampler": ("apply_logits_processors",),
}
"""Attributes of a model runner, and of its parts; a part may be absent."""

_state = {"keyed": False, "warned": False}


def install(keyed: bool = False) -> bool:
    """Once a process, before vLLM makes a model runner; again does nothing. False: this vLLM stays as it is.

    `keyed`: what engines do that do not say, and do not draft with a drafter of ours.
    """
    _state["keyed"] |= keyed
    import vllm

    if not vllm.__version__.startswith(VERSIONS):
        _warn(f"vLLM {vllm.__version__} is not one of {', '.join(v + 'x' for v in VERSIONS)}")
        return False
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = getattr(GPUModelRunner, "initialize_kv_cache", None)
    if original is None:
        _warn("vLLM's GPUModelRunner has no initialize_kv_cache")
        return False
    if not hasattr(original, "rhymed"):
        GPUModelRunner.initialize_kv_cache = _attaching(original)
    return True


def _attaching(original: Any) -> Any:
    @functools.wraps(original)
    def initialize_kv_cache(runner: Any, *arguments: Any, **named: Any) -> None:
        original(runner, *arguments, **named)
        attach(runner)

    initialize_kv_cache.rhymed = True  # type: ignore[attr-defined]
    return initialize_kv_cache


def attach(runner: Any) -> bool:
    """Gives a whole model runner keyed samplers, where that is wanted and possible; then shows it to its drafter.

    May be called again, since vLLM may make a runner's batch anew. False: vLLM's own samplers stay.
    """
    drafter = getattr(runner, "drafter", None)
    attached = _wanted(runner, drafter) and _attach_samplers(runner)
    if drafter is not None and hasattr(drafter, "bind") and not hasattr(runner, "rhymed_bound"):
        # vLLM throws every request's drafts away when the longest one comes near the end; ours end each by itself.
        runner.effective_drafter_max_model_len = 2**31
        drafter.bind(runner)
        runner.rhymed_bound = True
    return attached


def _wanted(runner: Any, drafter: Any) -> bool:
    asked = (getattr(runner.vllm_config, "additional_config", None) or {}).get(KEY) or {}
    ours = type(drafter).__module__.startswith("rhymed.")
    return bool(asked.get("keyed", ours or _state["keyed"]))


def _attach_samplers(runner: Any) -> bool:
    missing = _missing(runner)
    if missing:
        _warn(f"vLLM's model runner has no {', '.join(missing)}")
        return False
    if runner.use_async_scheduling and getattr(runner, "num_spec_tokens", 0):
        _warn("asynchronous scheduling with drafts does not know where in its sample a token stands")
        return False
    from rhymed.histospec.sampling.sampler import Keyed, KeyedRejectionSampler, KeyedSampler

    if not isinstance(runner.sampler, KeyedSampler):
        rejection = getattr(runner, "rejection_sampler", None)
        keyed = Keyed(runner, runner.sampler, rejection)
        runner.sampler = KeyedSampler(keyed, runner.sampler)
        if rejection is not None:
            runner.rejection_sampler = KeyedRejectionSampler(keyed, rejection)
        _compile()
    runner.input_batch.generators = _Forgetful()
    return True


class _Forgetful(dict[int, Any]):
    """Generators of seeded requests: keyed sampling needs none, and rewinding one on a CPU is an error."""

    def __setitem__(self, row: int, generator: Any) -> None:
        pass


def _missing(runner: Any) -> list[str]:
    missing = []
    for part, names in NEEDED.items():
        owner = getattr(runner, part, None) if part else runner
        path = f"{part}." if part else ""
        missing += [path + name for name in names if owner is not None and not hasattr(owner, name)]
    return missing


def _compile() -> None:
    """Before the first request waits for it."""
    from rhymed.histospec.sampling.cpu import Rows, verify

    one = np.zeros(1, np.int64)
    logits = np.zeros((1, 1), np.float32)
    verify(Rows(logits, np.arange(2), one[:0], one.view(np.uint64), one, np.ones(1, np.float32)), True)


def _warn(why: str) -> None:
    if not _state["warned"]:
        log.warning("keyed sampling is off, tokens come from vLLM's own sampler: %s", why)
    _state["warned"] = True


def repair_expand() -> None:
    """For drafters that vLLM's own rejection sampler verifies: its issue 55005.

    On CPUs without Triton the stand-in of a kernel writes into a copy, so verification sees whatever lay in memory in
    place of temperature, top-k and top-p.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        source = x.masked_fill(x == replace_from, replace_to) if replace_from != replace_to else x
        return source.repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand
