"""Patches keyed sampling into vLLM, and repairs its own. For model runner V2, see `runner_v2`.

`install` wraps the last step of a model runner's construction (its key-value cache); `attach` then gives that runner
keyed samplers and binds its drafter to it. Other versions of vLLM are left alone, with a warning, which `attached`
reports to who cannot do without. `additional_config={"rhymed": {"keyed": true}}` switches keyed sampling on, false
switches it off; by default it is on with rhymed's own drafter.

Two further patches: the profiling run computes the largest step that verifies drafts, and on a CPU a step without
drafts costs no more than in an engine without a drafter.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rhymed.histospec.settings import KEY
from rhymed.histospec.versions import RUNNER, release_of, unknown

if TYPE_CHECKING:
    import torch  # it reads its environment when it is imported, and an engine's is set later than this module is

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

    if (release := release_of(vllm.__version__)) is None:
        _warn(unknown(vllm.__version__))
        return False
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if current_platform.is_cpu():
        repair_rejection()
    if (original := getattr(GPUModelRunner, "initialize_kv_cache", None)) is None:
        _warn("vLLM's GPUModelRunner has no initialize_kv_cache")
        return False
    if not hasattr(original, "rhymed"):
        GPUModelRunner.initialize_kv_cache = _attaching(original)
    patch_profiling(GPUModelRunner, lambda runner: _wanted(runner, getattr(runner, "drafter", None)))
    if release.v2 and runner_v2_class() is not None:
        from rhymed.histospec import runner_v2

        runner_v2.install(attach_v2)
    return True


def runner_v2_class() -> Any:
    """Class of vLLM's model runner V2; None where no engine takes it."""
    if os.environ.get(RUNNER) == "0":
        return None
    try:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    except Exception as error:  # it needs kernels that vLLM does not have for every device
        log.info("vLLM's model runner V2 cannot be loaded here: %s", error)
        return None
    return GPUModelRunner


def attach_v2(runner: Any) -> bool:
    """As `attach`, for a loaded runner V2."""
    from rhymed.histospec import runner_v2

    drafter: Any = getattr(runner, "speculator", None)
    keyed = _wanted(runner, drafter_of(runner))
    if keyed and (why := runner_v2.attach_samplers(runner)):
        _warn(why)
        keyed = False
    if hasattr(drafter, "bind"):
        drafter.bind(runner)
        runner.rhymed_bound = True
    return keyed


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
    if _options(runner).get("engine"):
        raise ValueError(f"{KEY}.engine needs vLLM's model runner V2 (set {RUNNER}=1): V1 has one drafter")
    drafter = getattr(runner, "drafter", None)
    keyed = _wanted(runner, drafter) and _attach_samplers(runner)
    if drafter is None or not hasattr(drafter, "bind"):
        return keyed
    if not hasattr(runner, "rhymed_bound"):
        # vLLM drops all drafts when the longest request comes near the model's limit; our drafter limits each one.
        runner.effective_drafter_max_model_len = 2**31
        drafter.bind(runner)
        patch_undrafted_steps(runner)
        runner.rhymed_bound = True
    elif hasattr(drafter, "read_graphs"):  # vLLM also makes a cache for its profiling run, before it knows its graphs
        drafter.read_graphs()
    return keyed


def drafter_of(runner: Any) -> Any:
    """The drafter of a model runner, V1 or V2: rhymed's own, or vLLM's; None: it has none."""
    second = getattr(runner, "speculator", None)
    return getattr(runner, "drafter", None) or getattr(second, "histo", second)


def attached(runner: Any) -> dict[str, Any]:
    """What `attach` has done for a model runner: whether it samples with keys, whether its drafter is bound (None: it
    has none), and why not, as far as that is known. `refused`: logits processors with which it does not use keys."""
    kind, sampler = type(runner), getattr(runner, "sampler", None)
    first = any(base.__module__ == "vllm.v1.worker.gpu_model_runner" for base in kind.__mro__)
    keyed = getattr(sampler, "keyed", None)  # of the first runner
    v2 = type(sampler).__module__ == "rhymed.histospec.sampling.runner_v2"
    why = "" if first or v2 else f"vLLM has chosen the model runner {kind.__module__}.{kind.__name__}"
    return {
        "keyed": keyed is not None or v2,
        "refused": keyed.refused() if keyed is not None else [],
        "drafter": hasattr(runner, "rhymed_bound") if drafter_of(runner) is not None else None,
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
        if not state["keyed"] and _wanted(runner, drafter_of(runner)):
            raise RuntimeError(f"no keyed sampling ({state['why'] or 'its sampler was replaced'}): {CURE}")

    initialize_from_config.rhymed = True  # type: ignore[attr-defined]
    Worker.initialize_from_config = initialize_from_config


def _wanted(runner: Any, drafter: Any) -> bool:
    default = type(drafter).__module__.startswith("rhymed.") or _state["keyed"]
    return bool(_options(runner).get("keyed", default))


def _options(runner: Any) -> dict[str, Any]:
    return (getattr(runner.vllm_config, "additional_config", None) or {}).get(KEY) or {}


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


def repair_rejection() -> None:
    """Works around two faults of vLLM on a CPU, where its own rejection sampler verifies drafts. `install` calls it.

    Its issue 55005: the replacement of a Triton kernel writes integers into a copy, so verification divides by
    uninitialized memory instead of the temperature, reads top-k and top-p from it, and samples from no policy. And a
    step without a draft, whose requests have top-k and no top-p, takes the maximum of no numbers, which ends the
    engine.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        source = x.masked_fill(x == replace_from, replace_to) if replace_from != replace_to else x
        return source.repeat_interleave(counts, output_size=num_tokens)

    constrain = rejection_sampler.apply_sampling_constraints

    def constrained(logits: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        return constrain(logits, *arguments, **named) if len(logits) else logits

    rejection_sampler.expand_batch_to_tokens = expand
    if not hasattr(constrain, "rhymed"):
        constrained.rhymed = True  # type: ignore[attr-defined]
        rejection_sampler.apply_sampling_constraints = constrained


# Makes keyed sampling part of vLLM's profiling run, which decides how much of a device is left for the KV cache.
#
# vLLM profiles one row of logits per request. A step that verifies drafts has up to 1 + draft length rows per
# request, or as many as the drafter's budget may choose (its `rows`), and their logits are the largest thing that it
# allocates after the model. So the wrapped run also computes and samples the logits of the largest step. That
# compiles the kernels, too. Not in it: the float32 copy of all logits that penalties, bad words and lists of allowed
# tokens need in a step with drafts.


def patch_profiling(runner_class: Any, wanted: Callable[[Any], bool]) -> None:
    """Wraps `profile_run`, once. `wanted`: whether a runner will get keyed samplers."""
    original = getattr(runner_class, "profile_run", None)
    if original is None or hasattr(original, "rhymed"):
        return

    @functools.wraps(original)
    def profile_run(runner: Any, *arguments: Any, **named: Any) -> None:
        original(runner, *arguments, **named)
        if runner.device.type != "cpu" and wanted(runner) and _has_logits(runner):
            sample_largest(runner)

    profile_run.rhymed = True  # type: ignore[attr-defined]
    runner_class.profile_run = profile_run


def sample_largest(runner: Any) -> None:
    """Computes and samples as many rows of logits as a step may have, in every way that a step does."""
    import torch

    drafts = int(getattr(runner, "num_spec_tokens", 0) or 0)
    rows = min(runner.max_num_reqs * (1 + drafts), runner.max_num_tokens)
    rows = min(rows, getattr(getattr(runner, "drafter", None), "rows", None) or rows)
    with torch.inference_mode():
        config = runner.model_config
        if getattr(runner, "lora_config", None):  # adapters' logits need the indices of a real batch
            logits = _new(runner, rows, config.get_vocab_size(), dtype=config.dtype)
        else:
            logits = runner.model.compute_logits(_new(runner, rows, config.get_hidden_size(), dtype=config.dtype))
        if logits is None:  # gathered on another rank
            return
        few = logits[: min(rows, 1 + drafts)].float()  # what filtered rows have
        for part in (logits, few):
            for want_logprobs in (True, False):
                _sample(part, drafts, want_logprobs)
    runner._sync_device()


def _has_logits(runner: Any) -> bool:
    """Not on the earlier stages of a pipeline, nor for a model that samples nothing."""
    from vllm.distributed import get_pp_group

    return bool(get_pp_group().is_last_rank) and not getattr(runner, "is_pooling_model", False)


def _new(runner: Any, *shape: int, **named: Any) -> Any:
    import torch

    return torch.zeros(*shape, device=runner.device, **named)


def _sample(logits: Any, drafts: int, want_logprobs: bool) -> None:
    """`logits` as rows of requests with `drafts` drafts each; the last may have fewer."""
    import torch

    from rhymed.histospec.sampling import cpu, places

    count = logits.shape[0]
    first_B = np.array([*range(0, count, 1 + drafts), count])
    zero_B = np.zeros(len(first_B) - 1, np.int64)
    about = cpu.Rows(
        cpu.NO_LOGITS, first_B, cpu.NO_DRAFTS, zero_B.view(np.uint64), zero_B, np.ones(len(zero_B), np.float32)
    )
    drafted = torch.zeros(count - len(zero_B), dtype=torch.int32, device=logits.device) if drafts else None
    places.verify(about, logits, drafted, want_logprobs)


# Makes a step in which nothing is drafted as cheap as one of an engine that never drafts, on a CPU.
#
# With a drafter vLLM's model runner computes the indices of drafts in every step, by about twenty small operations,
# and hands its scheduler a list of drafts for every request. Where no request has a draft the first are known, and
# the second changes nothing: the scheduler has cleared the drafts that it scheduled. On a device these operations run
# while it computes, so nothing is replaced there.


def patch_undrafted_steps(runner: Any) -> None:
    """Wraps two methods of this runner. Leaves a runner alone that lacks one of them, or schedules asynchronously."""
    metadata, take = (getattr(runner, name, None) for name in ("_calc_spec_decode_metadata", "take_draft_token_ids"))
    if metadata is None or take is None or runner.use_async_scheduling or runner.device.type != "cpu":
        return
    runner._calc_spec_decode_metadata = _known(metadata)
    runner.take_draft_token_ids = _unless_empty(runner, take)


def _known(original: Any) -> Any:
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    @functools.lru_cache(maxsize=256)
    def constant(requests: int) -> tuple[torch.Tensor, ...]:
        """(no token, [B] zeros, [B] 1 to B, [B] 0 to B - 1): nothing writes into these."""
        counts_B = torch.arange(requests, dtype=torch.int32)
        none = torch.zeros(0, dtype=torch.int32)
        return none, torch.zeros_like(counts_B), counts_B + 1, counts_B

    @functools.wraps(original)
    def calc(num_draft_tokens: Any, cu_num_scheduled_tokens: Any, *others: Any, **named: Any) -> Any:
        if others or named or num_draft_tokens.any():
            return original(num_draft_tokens, cu_num_scheduled_tokens, *others, **named)
        none, zeros_B, ends_B, rows_B = constant(len(num_draft_tokens))
        last_B = torch.from_numpy(cu_num_scheduled_tokens[: len(num_draft_tokens)] - np.int32(1))
        return SpecDecodeMetadata(none, [0] * len(num_draft_tokens), zeros_B, ends_B, none, rows_B, last_B)

    return calc


def _unless_empty(runner: Any, original: Any) -> Any:
    @functools.wraps(original)
    def take_draft_token_ids() -> Any:
        drafts = runner._draft_token_ids
        return None if isinstance(drafts, list) and not any(drafts) else original()

    return take_draft_token_ids
