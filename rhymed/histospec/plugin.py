"""Patches keyed sampling into vLLM: the only module that names vLLM's internals.

`install` wraps the last step of a model runner's construction (its key-value cache); `attach` then gives that runner
keyed samplers and binds its drafter to it. Other versions of vLLM are left alone, with a warning, which `attached`
reports to who cannot do without. `additional_config={"rhymed": {"keyed": true}}` switches keyed sampling on, false
switches it off; by default it is on with rhymed's own drafter.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from rhymed.histospec import profiling, undrafted
from rhymed.histospec.settings import KEY
from rhymed.histospec.versions import RUNNER, release_of, unknown

log = logging.getLogger(__name__)

NEEDED = {
    "": ("sampler", "input_batch", "requests", "vllm_config", "model_config", "use_async_scheduling"),
    "input_batch": ("req_ids", "sampling_metadata", "num_tokens_no_spec", "generators", "vocab_size"),
    "sampler": ("logprobs_mode", "apply_logits_processors", "compute_logprobs", "gather_logprobs"),
    "rejection_sampler": ("apply_logits_processors",),
}
"""Attributes of a model runner and of its parts; a part may be missing."""
CURE = f"set {RUNNER}=0 in the environment of the engine, or do without keyed sampling"

_state: dict[str, Any] = {"keyed": False, "why": ""}


def install(keyed: bool = False) -> bool:
    """Call it before vLLM creates a model runner; more calls do nothing. False: this vLLM is not patched. `keyed`:
    the default for engines whose drafter is not rhymed's."""
    _state["keyed"] |= keyed
    import vllm

    if release_of(vllm.__version__) is None:
        _warn(unknown(vllm.__version__))
        return False
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if (original := getattr(GPUModelRunner, "initialize_kv_cache", None)) is None:
        _warn("vLLM's GPUModelRunner has no initialize_kv_cache")
        return False
    if not hasattr(original, "rhymed"):
        GPUModelRunner.initialize_kv_cache = _attaching(original)
    profiling.install(GPUModelRunner, lambda runner: _wanted(runner, getattr(runner, "drafter", None)))
    return True


def _attaching(original: Any) -> Any:
    @functools.wraps(original)
    def initialize_kv_cache(runner: Any, *arguments: Any, **named: Any) -> None:
        original(runner, *arguments, **named)
        attach(runner)

    initialize_kv_cache.rhymed = True  # type: ignore[attr-defined]
    return initialize_kv_cache


def attach(runner: Any) -> bool:
    """Gives a complete model runner keyed samplers if they are wanted and possible; then binds its drafter to it. May
    be called again, since vLLM may recreate a runner's batch. False: vLLM's own samplers stay."""
    drafter = getattr(runner, "drafter", None)
    keyed = _wanted(runner, drafter) and _attach_samplers(runner)
    if drafter is not None and hasattr(drafter, "bind") and not hasattr(runner, "rhymed_bound"):
        # vLLM drops all drafts when the longest request comes near the model's limit; our drafter limits each one.
        runner.effective_drafter_max_model_len = 2**31
        drafter.bind(runner)
        undrafted.install(runner)
        runner.rhymed_bound = True
    return keyed


def watch_hidden(runner: Any, keep: Callable[[Any, Any], None]) -> bool:
    """`keep` gets each step's hidden states before its drafter is asked: those that its logits were made of, and the
    number of drafts per request, None without drafts. False: this runner has no such step."""
    original: Any = getattr(runner, "propose_draft_token_ids", None)
    parameters = list(inspect.signature(original).parameters) if original else []
    if not {"sample_hidden_states", "spec_decode_metadata"} <= set(parameters):
        return False

    @functools.wraps(original)
    def propose_draft_token_ids(*arguments: Any, **named: Any) -> Any:
        given = named | dict(zip(parameters, arguments, strict=False))
        metadata = given["spec_decode_metadata"]
        keep(given["sample_hidden_states"], None if metadata is None else metadata.num_draft_tokens)
        return original(*arguments, **named)

    runner.propose_draft_token_ids = propose_draft_token_ids
    return True


def attached(runner: Any) -> dict[str, Any]:
    """What `attach` has done for a model runner: whether it samples with keys, whether its drafter is bound (None: it
    has none), and why not, as far as that is known. `refused`: logits processors with which it does not use keys."""
    kind = type(runner)
    first = any(base.__module__ == "vllm.v1.worker.gpu_model_runner" for base in kind.__mro__)
    why = "" if first else f"vLLM has chosen the model runner {kind.__module__}.{kind.__name__}"
    keyed = getattr(getattr(runner, "sampler", None), "keyed", None)
    return {
        "keyed": keyed is not None,
        "refused": keyed.refused() if keyed is not None else [],
        "drafter": hasattr(runner, "rhymed_bound") if getattr(runner, "drafter", None) is not None else None,
        "why": _state["why"] or why,
    }


def require() -> None:
    """From here on an engine of this process that should sample with keys and cannot does not start."""
    from vllm.v1.worker.gpu_worker import Worker

    original = Worker.initialize_from_config
    if hasattr(original, "rhymed"):
        return

    @functools.wraps(original)
    def initialize_from_config(worker: Any, *arguments: Any, **named: Any) -> None:
        original(worker, *arguments, **named)
        runner = worker.model_runner
        state = attached(runner)
        if not state["keyed"] and _wanted(runner, getattr(runner, "drafter", None)):
            raise RuntimeError(f"no keyed sampling ({state['why'] or 'its sampler was replaced'}): {CURE}")

    initialize_from_config.rhymed = True  # type: ignore[attr-defined]
    Worker.initialize_from_config = initialize_from_config


def _wanted(runner: Any, drafter: Any) -> bool:
    options = (getattr(runner.vllm_config, "additional_config", None) or {}).get(KEY) or {}
    return bool(options.get("keyed", type(drafter).__module__.startswith("rhymed.") or _state["keyed"]))


def _attach_samplers(runner: Any) -> bool:
    if missing := _missing(runner):
        _warn(f"vLLM's model runner has no {', '.join(missing)}")
        return False
    if runner.use_async_scheduling and getattr(runner, "num_spec_tokens", 0):
        _warn("with asynchronous scheduling and drafts the position of a token is not known")
        return False
    from rhymed.histospec.sampling.sampler import Keyed, KeyedRejectionSampler, KeyedSampler

    if not isinstance(runner.sampler, KeyedSampler):
        rejection = getattr(runner, "rejection_sampler", None)
        keyed = Keyed(runner, runner.sampler, rejection)
        runner.sampler = KeyedSampler(keyed, runner.sampler)
        if rejection is not None:
            runner.rejection_sampler = KeyedRejectionSampler(keyed, rejection)
        _compile()
    runner.input_batch.generators = _NoGenerators()
    return True


class _NoGenerators(dict[int, Any]):
    """Stores no generators of seeded requests: keyed sampling needs none, and vLLM's rewinding fails on a CPU."""

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
    """Compiles the sampler before a request has to wait for it."""
    from rhymed.histospec.sampling.cpu import Rows, verify

    zero = np.zeros(1, np.int64)
    logits = np.zeros((1, 1), np.float32)
    verify(Rows(logits, np.arange(2), zero[:0], zero.view(np.uint64), zero, np.ones(1, np.float32)), True)


def _warn(why: str) -> None:
    if not _state["why"]:
        log.warning("keyed sampling is off, vLLM's own sampler is used: %s", why)
    _state["why"] = _state["why"] or why


def repair_expand() -> None:
    """Works around vLLM's issue 55005 for drafts that its own rejection sampler verifies.

    On CPUs without Triton the replacement of a kernel writes into a copy, so verification reads uninitialized memory
    instead of temperature, top-k and top-p.
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
