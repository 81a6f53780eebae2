"""Requests to vLLM: a task as vLLM's sampling parameters, and vLLM's answer as our output.

Tokens are drawn from noise keyed by sample and position, or by vLLM's own sampler with one seed per sample. Log-probs
are those of the processed distribution (after temperature, top-p, top-k, min-p), which is the one sampled from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rhymed.histospec.settings import KEY
from rhymed_workers.engines.base import Output, Task


def sampling_params(task: Task, sampler: str, drafts: str, stop_tokens: list[int]) -> Any:
    """`sampler`: `rollout.sampler`; `drafts`: `drafts.method`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling, keyed = task.sampling, sampler == "keyed"
    extra: dict[str, Any] = {
        "prompt": task.id.prompt,
        "step": task.id.step,
        "name": str(task.id),
        "key": sampling.seed,
    }
    if keyed and sampling.min_p:
        extra["min_p"] = sampling.min_p  # vLLM refuses its own min_p together with drafts
    if task.prefix is not None:
        extra["prefix"] = len(task.prefix)
    if keyed and len(task.carried) and drafts != "none":
        extra["carried"] = np.asarray(task.carried).tolist()  # without the same noise they are poor drafts
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=0.0 if keyed else sampling.min_p,
        max_tokens=sampling.max_tokens,
        seed=None if keyed else sampling.seed,
        extra_args={KEY: extra},
        stop_token_ids=stop_tokens,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def output_of(completion: Any, versions: list[tuple[int, int]]) -> Output:
    """From vLLM's `CompletionOutput`. `versions`: (policy version, number of tokens), oldest first."""
    return Output(
        tokens=np.array(completion.token_ids, np.uint32),
        logprobs=np.array(completion.logprobs.logprobs, np.float32),
        finish_reason=completion.finish_reason if completion.finish_reason in ("stop", "length") else "abort",
        versions=versions,
    )
