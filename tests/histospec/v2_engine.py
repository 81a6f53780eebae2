"""vLLM's model runners, keyed: `python -m tests.histospec.v2_engine MODEL WHAT` prints what they make as JSON.

WHAT: `v1` is plain decoding by V1. By V2, in Triton's interpreter (tests/bench_v2): `v2` is plain decoding and
drafts, `headed` with those of vLLM's own head, `structured` with grammars, `ranks` two ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import numpy as np

TOKENS = 32
FEW = 12 * 32 * 1024  # bytes of 12 blocks of 32 tokens: running requests are preempted
HISTOSPEC = "rhymed.histospec.proposer.HistoSpec"
SHAPES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"repetition_penalty": 1.2},
]


def engine(model: str, **options: Any) -> Any:
    from vllm import LLM

    usual = {"skip_tokenizer_init": True, "distributed_executor_backend": "uni", "kv_cache_memory_bytes": FEW}
    return LLM(
        model,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=64,  # prompts are prefilled in chunks
        block_size=32,
        enforce_eager=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        **usual | options,
    )


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(2, 250) for _ in range(rng.randrange(4, 60))] for _ in SHAPES]


def asked(grammar: str = "") -> list[tuple[list[int], Any]]:
    """Two requests of each prompt, of all shapes, with keys of 64 bits; one in four with min-p. `grammar`: a regular
    expression for the first of the two."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    requests = []
    for number, prompt in enumerate(prompts()):
        for index in range(2):
            shape = SHAPES[(number + 3 * index) % len(SHAPES)]
            key = (10 * number + index + 1) * 0x9E3779B97F4A7C15 % 2**64
            extra = {"key": key, "prompt": str(number), "floor": True}
            if number % 2 and index:
                extra["min_p"] = 0.05
            if grammar and not index:
                shape = shape | {"structured_outputs": StructuredOutputsParams(regex=grammar)}
            shape = shape | {"logprobs": 0, "max_tokens": TOKENS, "detokenize": False, "ignore_eos": True}
            requests.append((prompt, SamplingParams(**shape, extra_args={"rhymed": extra})))
    return requests


def outputs(llm: Any, resets: int = 0, grammar: str = "") -> dict[str, Any]:
    """Tokens and log-probs of all requests. `resets`: so often all running requests are preempted at once."""
    from vllm.sampling_params import RequestOutputKind

    core, done, step = llm.llm_engine, {}, 0
    for number, (prompt, params) in enumerate(asked(grammar)):
        params.output_kind = RequestOutputKind.FINAL_ONLY
        core.add_request(str(number), {"prompt_token_ids": prompt}, params)
    while core.has_unfinished_requests():
        for one in core.step():
            done[int(one.request_id.split("-")[0])] = one.outputs[0]
        step += 1
        if resets and step % 7 == 5:
            resets -= 1
            assert core.engine_core.engine_core.reset_prefix_cache(reset_running_requests=True)
    made = [done[number] for number in range(len(done))]
    return {
        "tokens": [list(one.token_ids) for one in made],
        "logprobs": [
            [row[token].logprob for token, row in zip(one.token_ids, one.logprobs, strict=True)] for one in made
        ],
        "floors": [
            [floor(row[token].rank) for token, row in zip(one.token_ids, one.logprobs, strict=True)] for one in made
        ],
        "steps": step,
    }


def floor(rank: int) -> float:
    """What says in the place of a rank which tokens were kept, see `sampling.sampler`; 0: nothing does."""
    return float(np.int32(rank).view(np.float32)) if rank < 0 else 0.0


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def v1(model: str) -> dict[str, Any]:
    llm = engine(model, worker_extension_cls="rhymed.histospec.extension.Extension")
    return {"plain": outputs(llm)}


def ranks(model: str) -> dict[str, Any]:
    """`drafted`, `reset`: with history. With an EAGLE-3 head in `MODEL-eagle3` that drafts in addition, `head`:
    without history."""
    eagle = f"{model}-eagle3"
    headed = os.path.exists(eagle)
    llm = engine(
        model,
        worker_extension_cls="tests.histospec.v2_ranks.Ranks",
        speculative_config={"method": "eagle3", "model": eagle, "num_speculative_tokens": 6}
        if headed
        else {"method": "ngram", "model": HISTOSPEC, "num_speculative_tokens": 5},
        additional_config={"rhymed": {"engine": 3} if headed else {"budget": "fixed"}},
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        kv_cache_memory_bytes=FEW * 3 // 2 if headed else FEW,
    )
    llm.collective_rpc("set_drafting", args=([],))
    results: dict[str, Any] = {"plain": outputs(llm)}
    made = results["plain"]["tokens"]
    if headed:
        texts = [[*prompt, *tokens] for (prompt, _), tokens in zip(asked(), made, strict=True)]
        llm.collective_rpc("correct_head", args=(texts,))
        llm.collective_rpc("set_broken", args=(False,))
        results["head"] = outputs(llm)
        results["heads"] = llm.collective_rpc("drafted_by_head")
    past = [[(token + (at % 6 == 5)) % 250 for at, token in enumerate(one)] for one in made]
    llm.collective_rpc("set_drafting", args=(past[::2],))
    for name, resets in (("drafted", 0), ("reset", 4)):
        results[name] = outputs(llm, resets)
    results["ranks"] = llm.collective_rpc("drafting")
    return results


def learn(histo: Any, made: list[list[int]]) -> None:
    """The responses to each prompt, wrong at every sixth token, become its history."""
    from rhymed.histospec.index.builder import PastResponse

    for number, prompt in enumerate(prompts()):
        both = made[2 * number : 2 * number + 2]
        past = [[(token + (at % 6 == 5)) % 250 for at, token in enumerate(tokens)] for tokens in both]
        histo.remember(str(number), prompt, [PastResponse(np.array(tokens, np.int32), 0) for tokens in past])
    indexed = threading.Event()
    histo._builder.run(indexed.set)
    assert indexed.wait(60)


def structured(model: str) -> dict[str, Any]:
    """Half of the requests may say lowercase letters only. MODEL has a tokenizer."""
    grammar = "[a-z]{60}"
    llm = engine(
        model,
        skip_tokenizer_init=False,
        worker_extension_cls="rhymed.histospec.extension.Extension",
        speculative_config={"method": "ngram", "model": HISTOSPEC, "num_speculative_tokens": 5},
        additional_config={"rhymed": {"budget": "fixed"}},
    )
    histo = runner_of(llm).speculator.histo
    results: dict[str, Any] = {"asynchronous": llm.llm_engine.vllm_config.scheduler_config.async_scheduling}
    histo._broken = True  # drafts nothing
    results["plain"] = outputs(llm, grammar=grammar)
    histo._broken = False
    learn(histo, results["plain"]["tokens"])
    results["drafted"] = outputs(llm, grammar=grammar)
    accounts = [histo._drafter.total.drafted, histo._drafter.total.accepted]
    return results | {"accounts": accounts, "broken": histo._broken}


def v2(model: str) -> dict[str, Any]:
    from tests.histospec.keyed_engine import count_preemptions

    preempted = count_preemptions()
    llm = engine(
        model,
        worker_extension_cls="rhymed.histospec.extension.Extension",
        speculative_config={"method": "ngram", "model": HISTOSPEC, "num_speculative_tokens": 5},
        additional_config={"rhymed": {"budget": "fixed"}},
    )
    runner = runner_of(llm)
    histo = runner.speculator.histo
    results: dict[str, Any] = {"kind": [kind.__module__ for kind in type(runner).__mro__]}
    results["asynchronous"] = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    histo._broken = True  # drafts nothing
    results["plain"] = outputs(llm)
    results["preempted"] = [len(preempted)]
    histo._broken = False
    learn(histo, results["plain"]["tokens"])
    for name, resets in (("drafted", 0), ("reset", 4)):
        before, account = len(preempted), histo._drafter.total
        results[name] = outputs(llm, resets)
        results["preempted"].append(len(preempted) - before)
        spent = histo._drafter.total - account
        results[name] |= {"drafted": spent.drafted, "accepted": spent.accepted, "forwards": spent.forwards}
    results["broken"] = histo._broken
    return results


def headed(model: str) -> dict[str, Any]:
    """vLLM's own head in addition to history: EAGLE-3, the one in `MODEL-eagle3`, else the model's own (MTP). For
    every second request it is replaced by one that is right but for every sixth token."""
    from tests.histospec.keyed_engine import count_preemptions

    preempted = count_preemptions()
    eagle = f"{model}-eagle3"
    head = {"method": "eagle3", "model": eagle} if os.path.exists(eagle) else {"method": "mtp"}
    llm = engine(
        model,
        worker_extension_cls="tests.histospec.v2_ranks.Ranks",
        speculative_config={"num_speculative_tokens": 6, **head},
        additional_config={"rhymed": {"engine": 3}},
        kv_cache_memory_bytes=FEW * 3 // 2,  # as many blocks of three layers, not two
    )
    runner = runner_of(llm)
    speculator, histo = runner.speculator, runner.speculator.histo
    results: dict[str, Any] = {"kind": [kind.__module__ for kind in type(speculator).__mro__]}
    results["asynchronous"] = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    histo._broken = True  # nothing is drafted
    results["plain"] = outputs(llm)
    histo._broken = False
    texts = zip(asked(), results["plain"]["tokens"], strict=True)
    llm.collective_rpc("correct_head", args=([[*prompt, *tokens] for (prompt, _), tokens in texts],))

    def reported(name: str, resets: int = 0) -> None:
        before = len(preempted), histo.engine.verified, histo.engine.accepted
        results[name] = outputs(llm, resets)
        counts = histo.engine.verified - before[1], histo.engine.accepted - before[2]
        results[name] |= {"head": counts, "preempted": len(preempted) - before[0]}

    reported("head")
    learn(histo, results["plain"]["tokens"])
    reported("both", 4)
    results["broken"] = histo._broken
    return results


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    modes = {"v1": v1, "ranks": ranks, "v2": v2, "headed": headed, "structured": structured}
    print("\n" + json.dumps(modes[sys.argv[2]](sys.argv[1])), flush=True)
