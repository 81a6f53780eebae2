"""Keyed sampling and vLLM's own samplers take turns on this machine's CPU.

Everything but the model is vLLM's: the batch, its parameters, its samplers (temperature 1, log-probs of the sampled
tokens after processing). vLLM's rejection sampler runs with `plugin.repair_rejection`; neither ranks.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

VOCABULARY = 49_152
BATCHES = (1, 16, 64)
DRAFTS = 4  # per request, of which half are right


def run(quick: bool) -> dict[str, Any]:
    """Microseconds per row of both, median over turns, and the median of the ratios keyed to vLLM. Needs vLLM's
    platform for CPUs."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # as in rollout workers on a CPU
    import torch
    from vllm.platforms import current_platform

    from rhymed.histospec.plugin import repair_rejection

    current_platform.register_triton_kernel_overrides()  # as vLLM's workers do when they start
    repair_rejection()
    turns = 10 if quick else 60
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "vocabulary": VOCABULARY}
    with torch.inference_mode():
        for batch in BATCHES:
            result[f"plain_{batch}"] = _turns(_plain(batch), turns, batch)
        for batch in BATCHES:
            result[f"verify_{batch}"] = _turns(_verify(batch), turns, batch * (DRAFTS + 1))
    _print(result)
    return result


Sampler = Callable[[], float]  # runs one step and returns its seconds


def _plain(batch: int) -> tuple[Sampler, Sampler]:
    vllm, keyed = _runner(batch), _keyed(batch)
    logits = _logits(batch)

    def step(runner: Any) -> Sampler:
        return lambda: _timed(lambda x: runner.sampler(x, runner.input_batch.sampling_metadata), logits)

    return step(vllm), step(keyed)


def _verify(batch: int) -> tuple[Sampler, Sampler]:
    """Each draft has two right tokens and two wrong ones."""
    vllm, keyed = _runner(batch), _keyed(batch)
    logits = _logits(batch * (DRAFTS + 1))
    metadata = _drafts(keyed, logits)

    def step(runner: Any) -> Sampler:
        return lambda: _timed(
            lambda x: runner.rejection_sampler(metadata, None, x, runner.input_batch.sampling_metadata), logits
        )

    return step(vllm), step(keyed)


def _timed(work: Callable[[Any], Any], logits: Any) -> float:
    fresh = logits.clone()  # samplers may change them
    start = time.perf_counter()
    work(fresh)
    return time.perf_counter() - start


def _turns(samplers: tuple[Sampler, Sampler], turns: int, rows: int) -> dict[str, float]:
    vllm, keyed = samplers
    vllm(), keyed()
    pairs = [(vllm(), keyed()) for _ in range(turns)]
    return {
        "vllm_us_a_row": statistics.median(vllm for vllm, _ in pairs) / rows * 1e6,
        "keyed_us_a_row": statistics.median(keyed for _, keyed in pairs) / rows * 1e6,
        "ratio": statistics.median(keyed / vllm for vllm, keyed in pairs),
    }


def _logits(rows: int) -> Any:
    """With about the entropy of a small model at temperature 1."""
    import torch

    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 2.5


def _runner(batch: int) -> Any:
    """The part of a model runner that samplers use."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample import sampler
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    sampler.batched_count_greater_than = lambda logprobs, _: torch.zeros(logprobs.shape[0], dtype=torch.int64)
    config, device = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=batch)), torch.device("cpu")
    processors = LogitsProcessors(kind(config, device, False) for kind in BUILTIN_LOGITS_PROCESSORS)
    vllm_sampler = sampler.Sampler("processed_logprobs")
    runner = SimpleNamespace(
        sampler=vllm_sampler,
        rejection_sampler=RejectionSampler(vllm_sampler),
        input_batch=InputBatch(batch, 4096, 4096, device, VOCABULARY, [16], [256], logitsprocs=processors),
        requests={},
        model_config=SimpleNamespace(seed=0),
        vllm_config=SimpleNamespace(additional_config={"rhymed": {"keyed": True}}),
        use_async_scheduling=False,
    )
    for row in range(batch):
        params = SamplingParams(logprobs=0, extra_args={"rhymed": {"key": row}})
        state = CachedRequestState(str(row), list(range(100)), [], params, None, ([],), 0, [])
        runner.requests[str(row)] = state
        runner.input_batch.add_request(state)
    runner.input_batch.refresh_metadata()
    return runner


def _keyed(batch: int) -> Any:
    from rhymed.histospec.plugin import attach

    runner = _runner(batch)
    if not attach(runner):
        raise RuntimeError("keyed sampling does not support this vLLM; see the log")
    return runner


def _drafts(runner: Any, logits: Any) -> Any:
    import numpy as np
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    from rhymed.histospec.sampling.noise import draw

    batch = len(runner.requests)
    right = [[draw(logits[r * (DRAFTS + 1) + j].numpy(), r, 100 + j) for j in range(DRAFTS)] for r in range(batch)]
    metadata = SpecDecodeMetadata.make_dummy([[*row[: DRAFTS // 2], 0, 0] for row in right], torch.device("cpu"))
    last = np.arange(1, batch + 1) * (DRAFTS + 1) - 1
    metadata.bonus_logits_indices = torch.from_numpy(last)
    metadata.target_logits_indices = torch.from_numpy(np.setdiff1d(np.arange(last[-1] + 1), last))
    return metadata


def _print(result: dict[str, Any]) -> None:
    print(f"{result['threads']} threads, vocabulary {result['vocabulary']}; microseconds per row of logits")
    print(f"{'':12}{'vLLM':>10}{'keyed':>10}{'ratio':>10}")
    for name, row in result.items():
        if isinstance(row, dict):
            print(f"{name:12}{row['vllm_us_a_row']:10.1f}{row['keyed_us_a_row']:10.1f}{row['ratio']:10.2f}")
