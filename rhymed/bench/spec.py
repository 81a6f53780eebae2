"""`rhymed bench spec`: how much faster the engine is with drafts. Engines of different settings take turns.

Epoch 1 is generated once, for a part of the prompts, and is the history of every method. In cells of epoch 1 it is
history of other prompts only, as in the middle of a first epoch. Then each cell (batch size, temperature) is run by
every method, in turns of half a second, with new noise in each round. A rate is tokens per second while the batch is
full. Ratios are to plain vLLM in the same round.

Methods: `none` is plain vLLM, on model runner V1 as all methods (a release may choose V2 by itself); `keyed` has
our sampler; `ngram` and `suffix` are vLLM's own drafters with vLLM's own verification (fixed for CPUs, vLLM issue
55005); `aimd` is the RhymeRL paper's matching and draft lengths with our verification; `history` is HistoSpec;
`siblings` is HistoSpec without history; `stock` is vLLM as it chooses to be (on a GPU with its second model runner);
`again` has the requests' own responses as history, to show the speed when all drafts are right; `history+head` has
the learned head of a run (`--model RUN`) beside history; `fixed-4` verifies up to 4 drafted tokens for each request,
whatever they cost, to compare with what the budget chooses.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.bench.policy.arctic import has_arctic
from rhymed.bench.policy.engine import EngineProcess, Request, Run
from rhymed.bench.policy.workload import BenchWorkload, workloads
from rhymed.errors import ConfigError
from rhymed.histospec import graphs

METHODS = ("none", "keyed", "ngram", "suffix", "aimd", "history", "siblings", "again")
BASES = ("stock", "none", "keyed")  # the first of them that is measured is what others are compared with
UNKEYED = ("stock", "none", "ngram", "suffix")  # with noise of vLLM's
HEADED = "history+head"
FIXED = {f"fixed-{tokens}": tokens for tokens in (1, 2, 4, 8, 16, 32)}
GROUP = 8
REQUESTS = {1: 6, 4: 16, 16: 48, 64: 144}  # by batch size
WIDTH = 32
SLICE_S = 0.5
PROMPTS, FRESH = 42, 18  # all prompts; of these, the last ones without history


@dataclass(frozen=True)
class Place:
    """Where engines compute, and in what. Not tried on a GPU."""

    gpu: bool = False
    dtype: str = "float32"


@dataclass(frozen=True)
class Cell:
    batch: int
    temperature: float
    epoch: int  # 1: with history of other prompts only, 2: of its own, too

    def __str__(self) -> str:
        return f"epoch {self.epoch} T={self.temperature:g} batch {self.batch}"


def run(
    quick: bool,
    model: Path | None = None,
    methods: Sequence[str] = METHODS,
    batches: Sequence[int] = (1, 4, 16, 64),
    temperatures: Sequence[float] = (1.0,),
    epochs: Sequence[int] = (2, 1),
    rounds: int = 5,
    arctic: Path | None = None,
    out: Path | None = None,
    device: str = "cpu",
    dtype: str = "",
) -> dict[str, Any]:
    """`model`: a folder (default: the bench policy, then SmolLM2). `out`: a JSON file, rewritten after each cell.
    `dtype`: of weights; empty: float32 on a CPU, bfloat16 on a GPU. Raises `ConfigError`.
    """
    _check(methods, batches, epochs, temperatures, rounds)
    place = Place(device == "cuda", dtype or ("bfloat16" if device == "cuda" else "float32"))
    if "suffix" in methods and not has_arctic(arctic):
        print("suffix decoding is left out: arctic-inference is not installed (--arctic FOLDER)", flush=True)
        methods = [method for method in methods if method != "suffix"]
    results: dict[str, Any] = {}
    for workload in workloads(model):
        if HEADED in methods and workload.head is None:
            raise ConfigError(f"--methods {HEADED}: {workload.name} has no head; `rhymed drafter fit RUN` makes one")
        bench = Bench(workload, methods, str(arctic or ""), place)
        try:
            for temperature in temperatures:
                bench.first_epoch(temperature, 8 if quick else PROMPTS - FRESH)
                for cell in (Cell(batch, temperature, epoch) for epoch in epochs for batch in batches):
                    measured = measure(bench, cell, 1 if quick else rounds)
                    results.setdefault(workload.name, {})[str(cell)] = measured
                    if out:
                        out.write_text(json.dumps(results, indent=1) + "\n")
        finally:
            bench.close()
    return results


def _check(
    methods: Sequence[str], batches: Sequence[int], epochs: Sequence[int], temperatures: Sequence[float], rounds: int
) -> None:
    """Before engines are started."""
    for name, given, known in (
        ("methods", methods, (*METHODS, "stock", HEADED, *FIXED)),
        ("batches", batches, tuple(REQUESTS)),
        ("epochs", epochs, (1, 2)),
    ):
        if unknown := [str(one) for one in given if one not in known]:
            raise ConfigError(f"--{name} {','.join(unknown)}: there are {', '.join(map(str, known))}")
    if not {"history", "keyed"} & set(methods):
        raise ConfigError(f"--methods {','.join(methods)}: add keyed or history, which generates epoch 1")
    if not set(BASES) & set(methods):
        raise ConfigError(f"--methods {','.join(methods)}: add one of {', '.join(BASES)}, to compare with")
    if rounds < 1 or min(temperatures, default=-1.0) < 0:
        raise ConfigError(f"--rounds {rounds}, --temperatures: at least one round, and temperatures from 0 on")


def engine(workload: BenchWorkload, method: str, context: int, place: Place = Place()) -> dict[str, Any]:
    """Arguments of vllm.LLM; only drafting and sampling differ between methods."""
    unkeyed = {name: {"keyed": False} for name in UNKEYED}
    drafts: dict[str, Any] = {
        "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        "suffix": {"method": "suffix", "num_speculative_tokens": WIDTH},
    }
    custom = {
        "method": "custom_class",
        "model": "rhymed.histospec.proposer.HistoSpec",
        "num_speculative_tokens": FIXED.get(method, WIDTH),
    }
    settings = {"aimd": {"budget": "aimd", "matching": "paper"}, HEADED: {"head": str(workload.head or "")}}
    settings |= {name: {"budget": "fixed"} for name in FIXED}
    arguments: dict[str, Any] = {
        "model": str(workload.model),
        "dtype": place.dtype,
        "max_model_len": context,
        "max_num_seqs": 64,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "kv_cache_memory_bytes": 2 << 30,
        "max_num_batched_tokens": max(context, 2560),
        "worker_extension_cls": "rhymed.histospec.extension.Extension",
        "additional_config": {"rhymed": unkeyed.get(method, settings.get(method, {}))},
    }
    if not place.gpu:
        arguments |= {"block_size": 32, "enforce_eager": True}
    if method in ("stock", "none", "keyed"):
        return arguments
    arguments["speculative_config"] = dict(drafts.get(method, custom))
    if place.gpu and method not in drafts:  # as a rollout worker on a GPU does
        drafted = graphs.draft_length(WIDTH)
        arguments["speculative_config"]["num_speculative_tokens"] = drafted
        arguments["compilation_config"] = graphs.compilation(arguments["max_num_seqs"], drafted)
    return arguments


class Bench:
    def __init__(
        self, workload: BenchWorkload, methods: Sequence[str], arctic: str = "", place: Place = Place()
    ) -> None:
        self.workload, self.methods = workload, list(methods)
        context = max(map(len, workload.prompts)) + workload.longest + WIDTH + 1
        self.engines: dict[str, EngineProcess] = {}
        for method in methods:
            path = [arctic] if method == "suffix" and arctic else []
            self.engines[method] = EngineProcess(
                engine(workload, method, context, place),
                path=path,
                fix_expand=method in ("ngram", "suffix") and not place.gpu,
                stock=method == "stock",
            )
        for process in self.engines.values():
            process.ready()
        self.history: dict[float, dict[int, list[list[int]]]] = {}  # temperature -> prompt -> responses of epoch 1

    def close(self) -> None:
        for process in self.engines.values():
            process.close()

    def first_epoch(self, temperature: float, prompts: int) -> None:
        """Generates the history that all methods share."""
        process = self.engines.get("history") or self.engines["keyed"]
        group = GROUP if temperature else 1
        requests = [
            self._request(prompt, number, temperature, 0) for prompt in range(prompts) for number in range(group)
        ]
        self.history[temperature] = _by_prompt(requests, process.run(requests, 64, whole=True).responses)

    def cell(self, cell: Cell, round: int) -> dict[str, Run]:
        """Runs the same requests with every method. They take turns of `SLICE_S`, so other load affects all."""
        count = REQUESTS[cell.batch]
        each = GROUP if count >= 48 else 2
        needed = -(-count // each)
        start = 0 if cell.epoch == 2 else len(self.workload.prompts) - needed
        prompts = [start + (place + round * 7) % needed for place in range(needed)]
        requests = [
            self._request(prompt, number, cell.temperature, 1 + round) for prompt in prompts for number in range(each)
        ][:count]
        for method, process in self.engines.items():
            history = self.history[cell.temperature]
            if method == "again":
                history = _by_prompt(requests, process.run(requests, 64, whole=True).responses)
            process.forget()
            for prompt in sorted({*prompts, *history}):
                past = history.get(prompt, []) if method != "siblings" else []
                process.remember(str(prompt), self.workload.prompts[prompt], past)
            process.begin(requests, cell.batch)
        time.sleep(0.3)  # to build the indexes, which in a run exist long before they are needed
        running = self.methods[round % len(self.methods) :] + self.methods[: round % len(self.methods)]
        while running := [method for method in running if self.engines[method].advance(SLICE_S)]:
            pass
        return {method: process.finish() for method, process in self.engines.items()}

    def _request(self, prompt: int, number: int, temperature: float, step: int) -> Request:
        seed = (step * 1_000_003 + prompt) * 1_009 + number + 1
        tokens = self.workload.prompts[prompt]
        return Request(tokens, self.workload.longest, temperature, seed, f"{prompt}/{number}", str(prompt), step)


def _by_prompt(requests: Sequence[Request], responses: Sequence[list[int]]) -> dict[int, list[list[int]]]:
    history: dict[int, list[list[int]]] = {}
    for request, response in zip(requests, responses, strict=True):
        history.setdefault(int(request.history), []).append(response)
    return history


def measure(bench: Bench, cell: Cell, rounds: int) -> dict[str, Any]:
    runs = [bench.cell(cell, round) for round in range(rounds + 1)][1:]  # the first one warms up
    rows = {method: _row(method, runs) for method in bench.methods}
    print(f"{bench.workload.name}, {cell}")
    for method, row in rows.items():
        print(
            f"  {method:<10}{row['tokens_per_s']:9.1f} tokens/s  x{row['ratio']:.2f}"
            f" [{row['ratio_min']:.2f}, {row['ratio_max']:.2f}]  {row['tokens_a_step']:.1f} tokens per step"
            f"{_draft_columns(row)}{_same(row)}",
            flush=True,
        )
    return rows


def _row(method: str, runs: Sequence[dict[str, Run]]) -> dict[str, float]:
    own = [run[method] for run in runs]
    rates = [run.tokens / run.seconds for run in own]
    base = [run[next(name for name in BASES if name in run)] for run in runs]
    same, compared = _equal(method, runs)
    ratios = [rate / (plain.tokens / plain.seconds) for rate, plain in zip(rates, base, strict=True)]
    accounts = [account for run in own for account in run.accounts if account]
    total = [sum(column) for column in zip(*accounts, strict=True)] if accounts else [0.0] * 6
    forwards, drafted, accepted, timed_s, plain_s, draft_s, *_ = total
    return {
        "tokens_per_s": statistics.median(rates),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "tokens": sum(run.tokens for run in own),
        "tokens_a_step": sum(run.tokens for run in own) / sum(run.steps for run in own),
        "accept_length": 1 + accepted / forwards if forwards else 1.0,
        "accept_rate": accepted / drafted if drafted else 0.0,
        "drafted": drafted,
        "net_speedup": plain_s / timed_s if timed_s else 1.0,
        "draft_share": draft_s / timed_s if timed_s else 0.0,
        "same_tokens": same,
        "compared_tokens": compared,
    }


def _equal(method: str, runs: Sequence[dict[str, Run]]) -> tuple[int, int]:
    """Tokens before the first that differs from those of `keyed`, and tokens that both have."""
    same = compared = 0
    for found in (run for run in runs if "keyed" in run and method not in UNKEYED):
        for mine, keyed in zip(found[method].responses, found["keyed"].responses, strict=True):
            both = min(len(mine), len(keyed))
            same += next((place for place in range(both) if mine[place] != keyed[place]), both)
            compared += both
    return same, compared


def _same(row: dict[str, float]) -> str:
    if not row["compared_tokens"]:
        return ""
    return f"  same tokens {int(row['same_tokens'])} of {int(row['compared_tokens'])}"


def _draft_columns(row: dict[str, float]) -> str:
    if not row["drafted"]:
        return ""
    return (
        f"  accepted {row['accept_rate']:.2f}, length {row['accept_length']:.2f},"
        f" own estimate x{row['net_speedup']:.2f}, drafting {100 * row['draft_share']:.1f} %"
    )
