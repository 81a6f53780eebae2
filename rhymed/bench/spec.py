"""How much faster the engine is with drafts: the same requests by engines of different settings, which take turns.

Epoch 1 is generated once and is everybody's history; then each cell (batch size, temperature) is run by every method,
half a second in turn, round after round, with new noise each round and the cell's history as it was. A rate is tokens
a second while the batch is full. Ratios are to plain vLLM in the same round.

Methods: `none` is vLLM as it comes; `keyed` the same with our sampler; `ngram` and `suffix` are vLLM's own drafters
with vLLM's own verification (mended for CPUs, vLLM issue 55005); `aimd` is the RhymeRL paper's matching and draft
lengths, with our verification; `history` is HistoSpec; `siblings` is HistoSpec without any history; `again` has
what the requests are about to say for its history: how fast an engine is whose drafts are all right.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.bench.policy.engine import Request, Rig, Run
from rhymed.bench.policy.workload import Workload, workloads

METHODS = ("none", "keyed", "ngram", "suffix", "aimd", "history", "siblings", "again")
GROUP = 8
REQUESTS = {1: 6, 4: 16, 16: 48, 64: 144}  # by batch
WIDTH = 32
SLICE_S = 0.5
PROMPTS, FRESH = 42, 18  # all of them; the last ones never have history


@dataclass(frozen=True)
class Cell:
    batch: int
    temperature: float
    epoch: int  # 1: no history, 2: that of epoch 1

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
) -> dict[str, Any]:
    """`model`: a folder; none: the bench policy and SmolLM2, one after the other.

    `out`: a JSON file of it all, written again after each cell.
    """
    results: dict[str, Any] = {}
    for workload in workloads(model):
        bench = Bench(workload, methods, str(arctic or ""))
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


def engine(workload: Workload, method: str, context: int) -> dict[str, Any]:
    """Arguments of vllm.LLM; all but the drafting is the same for every method."""
    ours = {"none": {"keyed": False}, "ngram": {"keyed": False}, "suffix": {"keyed": False}}
    drafts: dict[str, Any] = {
        "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        "suffix": {"method": "suffix", "num_speculative_tokens": WIDTH},
    }
    custom = {
        "method": "custom_class",
        "model": "rhymed.histospec.proposer.HistoSpec",
        "num_speculative_tokens": WIDTH,
    }
    settings = {"aimd": {"budget": "aimd", "matching": "paper"}}
    arguments: dict[str, Any] = {
        "model": str(workload.model),
        "dtype": "float32",
        "max_model_len": context,
        "max_num_seqs": 64,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "kv_cache_memory_bytes": 2 << 30,
        "block_size": 32,
        "enforce_eager": True,
        "max_num_batched_tokens": max(context, 2560),
        "worker_extension_cls": "rhymed.histospec.extension.Extension",
        "additional_config": {"rhymed": ours.get(method, settings.get(method, {}))},
    }
    if method not in ("none", "keyed"):
        arguments["speculative_config"] = drafts.get(method, custom)
    return arguments


class Bench:
    def __init__(self, workload: Workload, methods: Sequence[str], arctic: str = "") -> None:
        self.workload, self.methods = workload, list(methods)
        context = max(map(len, workload.prompts)) + workload.longest + WIDTH + 1
        self.rigs: dict[str, Rig] = {}
        for method in methods:
            path = [arctic] if method == "suffix" and arctic else []
            self.rigs[method] = Rig(engine(workload, method, context), path=path, fix=method in ("ngram", "suffix"))
        for rig in self.rigs.values():
            rig.ready()
        self.pasts: dict[float, dict[int, list[list[int]]]] = {}  # temperature -> prompt -> responses of epoch 1

    def close(self) -> None:
        for rig in self.rigs.values():
            rig.close()

    def first_epoch(self, temperature: float, prompts: int) -> None:
        """Everybody's history, generated once."""
        rig = self.rigs.get("history") or self.rigs["keyed"]
        group = GROUP if temperature else 1
        asked = [
            self._request(prompt, number, temperature, 0) for prompt in range(prompts) for number in range(group)
        ]
        run = rig.run(asked, 64, whole=True)
        self.pasts[temperature] = _by_prompt(asked, run.made)

    def cell(self, cell: Cell, round: int) -> dict[str, Run]:
        """The same requests by every method; they take turns every `SLICE_S`, whatever the machine does meanwhile."""
        count = REQUESTS[cell.batch]
        each = GROUP if count >= 48 else 2
        needed = -(-count // each)
        start = 0 if cell.epoch == 2 else len(self.workload.prompts) - needed
        prompts = [start + (place + round * 7) % needed for place in range(needed)]
        asked = [
            self._request(prompt, number, cell.temperature, 1 + round) for prompt in prompts for number in range(each)
        ][:count]
        for method, rig in self.rigs.items():
            known = self.pasts[cell.temperature] if cell.epoch == 2 else {}
            if method == "again":
                known = _by_prompt(asked, rig.run(asked, 64, whole=True).made)
            rig.forget()
            for prompt in prompts:
                past = known.get(prompt, []) if method != "siblings" else []
                rig.remember(str(prompt), self.workload.prompts[prompt], past)
            rig.begin(asked, cell.batch)
        time.sleep(0.3)  # indexes are built beside the engine; in a run they are long before they are needed
        going = self.methods[round % len(self.methods) :] + self.methods[: round % len(self.methods)]
        while going := [method for method in going if self.rigs[method].advance(SLICE_S)]:
            pass
        return {method: rig.finish() for method, rig in self.rigs.items()}

    def _request(self, prompt: int, number: int, temperature: float, step: int) -> Request:
        seed = (step * 1_000_003 + prompt) * 1_009 + number + 1
        tokens = self.workload.prompts[prompt]
        return Request(tokens, self.workload.longest, temperature, seed, f"{prompt}/{number}", str(prompt), step)


def _by_prompt(asked: Sequence[Request], made: Sequence[list[int]]) -> dict[int, list[list[int]]]:
    found: dict[int, list[list[int]]] = {}
    for request, response in zip(asked, made, strict=True):
        found.setdefault(int(request.history), []).append(response)
    return found


def measure(bench: Bench, cell: Cell, rounds: int) -> dict[str, Any]:
    """Runs and prints a cell; its numbers by method."""
    runs = [bench.cell(cell, round) for round in range(rounds + 1)][1:]  # the first one warms up
    rows = {method: _row(method, runs) for method in bench.methods}
    print(f"{bench.workload.name}, {cell}")
    for method, row in rows.items():
        print(
            f"  {method:<10}{row['tokens_per_s']:9.1f} tokens/s  x{row['ratio']:.2f}"
            f" [{row['ratio_min']:.2f}, {row['ratio_max']:.2f}]  {row['tokens_a_step']:.1f} tokens a step"
            f"{_words(row)}",
            flush=True,
        )
    return rows


def _row(method: str, runs: Sequence[dict[str, Run]]) -> dict[str, float]:
    own = [run[method] for run in runs]
    rates = [run.tokens / run.seconds for run in own]
    base = [run["none" if "none" in run else "keyed"] for run in runs]
    ratios = [rate / (one.tokens / one.seconds) for rate, one in zip(rates, base, strict=True)]
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
    }


def _words(row: dict[str, float]) -> str:
    if not row["drafted"]:
        return ""
    return (
        f"  accepted {row['accept_rate']:.2f}, length {row['accept_length']:.2f},"
        f" own estimate x{row['net_speedup']:.2f}, drafting {100 * row['draft_share']:.1f} %"
    )
