"""A real vLLM engine with keyed sampling: `python keyed_engine.py MODEL` prints its outputs as JSON.

It is a program because keyed sampling is switched on for a whole process.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

VOCABULARY = 264
KNOWN: dict[int, list[int]] = {}  # whole sequences by key, from which `KnownDrafts` drafts
EOS = 1


class KnownDrafts:
    """Drafts the known sequence with every seventh token wrong, and beyond its end."""

    def __init__(self, vllm_config: Any) -> None:
        from rhymed.histospec.plugin import install

        self.width = vllm_config.speculative_config.num_speculative_tokens
        self.runner: Any = None
        self.drafted = 0
        install()

    def load_model(self, *_: Any, **__: Any) -> None:
        pass

    def bind(self, runner: Any) -> None:
        self.runner = runner

    def propose(self, sampled, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        drafts = [
            self._draft(row, int(num_tokens_no_spec[row])) if generated else []
            for row, generated in enumerate(sampled)
        ]
        self.drafted += sum(map(len, drafts))
        return drafts

    def _draft(self, row: int, at: int) -> list[int]:
        id = self.runner.input_batch.req_ids[row]
        known = KNOWN[self.runner.requests[id].sampling_params.extra_args["rhymed"]["key"]]
        width = min(self.width, 255 - at)
        return [3 if t % 7 == 0 else known[t] if t < len(known) else 5 for t in range(at, at + width)]


def engine(model: str, **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=64,  # prompts are prefilled in chunks
        kv_cache_memory_bytes=14 * 32 * 1024,  # 14 blocks of 32 tokens: running samples are preempted
        block_size=32,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        logprobs_mode="processed_logprobs",
        max_logprobs=VOCABULARY,
        disable_log_stats=True,
        **options,
    )


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(2, 250) for _ in range(rng.randrange(4, 120))] for _ in range(16)]


def params(key: int, **options: Any) -> Any:
    from vllm import SamplingParams

    penalties = {"repetition_penalty": 1.2, "presence_penalty": 0.5}
    shape = [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 20, **penalties}, {"temperature": 0.0}][key % 4]
    options = {"logprobs": 0, "max_tokens": 40, "stop_token_ids": [EOS], "detokenize": False, **shape, **options}
    return SamplingParams(seed=key, extra_args={"rhymed": {"key": key}}, **options)


def outputs(llm: Any, batch: int) -> list[tuple[list[int], list[float]]]:
    generated: list[Any] = []
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()]
    for at in range(0, 16, batch):
        keys = range(at, at + batch)
        generated += llm.generate(requests[at : at + batch], [params(key) for key in keys], use_tqdm=False)
    return [(list(request.outputs[0].token_ids), chosen(request.outputs[0])) for request in generated]


def chosen(output: Any) -> list[float]:
    return [row[token].logprob for token, row in zip(output.token_ids, output.logprobs, strict=True)]


def everything(llm: Any) -> list[list[list[float]]]:
    """All log-probs at every position of the first eight samples."""
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()[:8]]
    generated = llm.generate(requests, [params(key, logprobs=-1) for key in range(8)], use_tqdm=False)
    return [
        [[row[v].logprob for v in range(len(row))] for row in request.outputs[0].logprobs] for request in generated
    ]


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def count_preemptions() -> list[str]:
    """Collects the ids of preempted requests."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted, original = [], Scheduler._preempt_request

    def preempt(scheduler: Any, request: Any, *others: Any, **named: Any) -> Any:
        preempted.append(request.request_id)
        return original(scheduler, request, *others, **named)

    Scheduler._preempt_request = preempt
    return preempted


def keep_asynchronous() -> None:
    """On CPUs vLLM switches asynchronous scheduling off, which is on by default on a GPU."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    original = platform.check_and_update_config.__func__

    def check_and_update_config(kind: Any, config: Any) -> None:
        original(kind, config)
        config.scheduler_config.async_scheduling = True

    platform.check_and_update_config = classmethod(check_and_update_config)


def main() -> None:
    results: dict[str, Any] = {}
    preempted = count_preemptions()
    llm = engine(sys.argv[1], worker_extension_cls="rhymed.histospec.extension.Extension")
    results["alone"] = outputs(llm, 1)
    results["together"] = outputs(llm, 16)
    results["everything"] = everything(llm)
    results["samplers"] = [type(runner_of(llm).sampler).__name__]
    results["preempted"] = [len(preempted)]
    import keyed_engine  # as vLLM imports it, which is not this program

    for key, (prompt, (tokens, _)) in enumerate(zip(prompts(), results["together"], strict=True)):
        keyed_engine.KNOWN[key] = prompt + tokens
    del llm
    spec = {"method": "custom_class", "model": "keyed_engine.KnownDrafts", "num_speculative_tokens": 6}
    llm = engine(sys.argv[1], speculative_config=spec, additional_config={"rhymed": {"keyed": True}})
    results["drafted"] = outputs(llm, 16)
    results["samplers"] += [type(runner_of(llm).rejection_sampler).__name__]
    results["preempted"].append(len(preempted) - results["preempted"][0])
    results["drafts"] = runner_of(llm).drafter.drafted
    del llm
    keep_asynchronous()
    before = len(preempted)
    llm = engine(sys.argv[1], worker_extension_cls="rhymed.histospec.extension.Extension")
    results["asynchronous"] = outputs(llm, 16)
    results["samplers"] += [type(runner_of(llm).sampler).__name__]
    results["preempted"].append(len(preempted) - before)
    results["late"] = runner_of(llm).use_async_scheduling
    print("\n" + json.dumps(results), flush=True)


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "passive"}
    main()
