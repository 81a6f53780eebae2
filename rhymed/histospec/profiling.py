"""Makes keyed sampling part of vLLM's profiling run, which decides how much of a device is left for the KV cache.

vLLM profiles one row of logits per request. A step that verifies drafts has up to 1 + draft length rows per request,
and their logits are the largest thing that it allocates after the model. So the wrapped run also computes and samples
the logits of the largest step. That compiles the kernels, too. Not in it: the float32 copy of all logits that
penalties, bad words and lists of allowed tokens need in a step with drafts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def install(runner_class: Any, wanted: Callable[[Any], bool]) -> None:
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
