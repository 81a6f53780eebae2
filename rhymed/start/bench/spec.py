"""`rhymed bench spec`: how much faster the engine is with drafts. Engines of different settings take turns.

Epoch 1 is generated once, for a part of the prompts, and is the history of every method. In cells of epoch 1 it is
history of other prompts only, as in the middle of a first epoch. Then each cell (batch size, temperature) is run by
every method, in turns of half a second, with new noise in each round. A rate is tokens per second while the batch is
full. Ratios are to plain vLLM in the same round.

Methods: `none` is plain vLLM, on model runner V1 as all methods (a release may choose V2 by itself); `keyed` has our
sampler; `ngram` and `suffix` are vLLM's own drafters with vLLM's own verification (fixed for CPUs, vLLM issue 55005);
`aimd` is the RhymeRL paper's matching and draft lengths with our verification; `history` is HistoSpec; `siblings` is
HistoSpec without history; `stock` is vLLM as it chooses to be (on a GPU with its second model runner); `again` has
the requests' own responses as history, to show the speed when all drafts are right; `fixed-4` verifies up to 4
drafted tokens for each request, whatever they cost, to compare with what the budget chooses. On a GPU engines share
its memory. An engine that fails is left out from then on, and the others continue.

`Bench` runs the cells; `workloads` has the prompts.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rhymed.core.config import Config, Data, Model
from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.run.checkpoint import newest
from rhymed.histospec import graphs
from rhymed.placement import gpus
from rhymed.start.bench.engine import FAILURES, EngineProcess, Request, Run, share

METHODS = ("none", "keyed", "ngram", "suffix", "aimd", "history", "siblings", "again")
BASES = (
    "stock",
    "none",
    "keyed",
)  # the first that is measured is what others are compared with
UNKEYED = ("stock", "none", "ngram", "suffix")  # with noise of vLLM's
FIXED = {f"fixed-{tokens}": tokens for tokens in (1, 2, 4, 8, 16, 32)}
GROUP = 8
REQUESTS = {1: 6, 4: 16, 16: 48, 64: 144, 256: 384}  # by batch size
WIDTH = 32
SLICE_S = 0.5
PAST = 24  # prompts with history, at least
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where engines compute, and in what. `most`: requests that run at once. `memory`: vLLM's arguments about it."""

    gpu: bool = False
    dtype: str = "float32"
    most: int = 64
    memory: tuple[tuple[str, Any], ...] = (("kv_cache_memory_bytes", 2 << 30),)
    exact: str = "distribution"  # see `rollout.exact`


def place_of(device: str, dtype: str, model: Path, engines: int, batches: Sequence[int], exact: str = "") -> Place:
    """The place of `engines` engines with this model on one device. `dtype`: empty: float32 on a CPU, bfloat16 on a
    GPU. Raises `ConfigError` if they do not fit a GPU together."""
    most, gpu = max(64, *batches), device == "cuda"
    place = Place(gpu, dtype or ("bfloat16" if gpu else "float32"), most, exact=exact or "distribution")
    found = gpus.here() if gpu else None
    if found is None:
        return place
    parameters, vocabulary = dimensions(model)
    weights, rows = parameters * (4 if place.dtype == "float32" else 2), most * (1 + graphs.draft_length(WIDTH))
    memory = share(engines, found.gpus[0].bytes, weights, rows * vocabulary)
    return replace(place, memory=tuple(memory.items()))


def dimensions(model: Path) -> tuple[int, int]:
    """(parameters, words of the vocabulary) of a folder with a configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    return sum(one.numel() for one in made.parameters()), int(config.get_text_config().vocab_size)


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
    out: Path | None = None,
    device: str = "cpu",
    dtype: str = "",
) -> dict[str, Any]:
    """`model`: a folder (default: the bench policy, then SmolLM2). `out`: a JSON file, rewritten after each cell.
    `dtype`: of weights; empty: float32 on a CPU, bfloat16 on a GPU. Raises `ConfigError`.
    """
    _check(methods, batches, epochs, temperatures, rounds)
    if "suffix" in methods and not has_arctic():
        print("suffix decoding is left out: arctic-inference is not installed", flush=True)
        methods = [method for method in methods if method != "suffix"]
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for workload in workloads(model):
        place = place_of(device, dtype, workload.model, len(methods), batches)
        bench = Bench(workload, methods, place)
        try:
            for temperature in temperatures:
                bench.first_epoch(temperature, 8 if quick else past(batches))
                for cell in (Cell(batch, temperature, epoch) for epoch in epochs for batch in batches):
                    measured = measure(bench, cell, 1 if quick else rounds)
                    results.setdefault(workload.name, {})[str(cell)] = measured
                    if out:
                        out.write_text(json.dumps(results, indent=1) + "\n")
        finally:
            bench.close()
        failed |= {f"{method} with {workload.name}": why for method, why in bench.failed.items()}
    return results | ({"failed": failed, "good": False} if failed else {})


def past(batches: Sequence[int]) -> int:
    """Prompts of epoch 1 that are the history of epoch 2."""
    return max(PAST, *(-(-REQUESTS[batch] // GROUP) for batch in batches))


def _check(
    methods: Sequence[str], batches: Sequence[int], epochs: Sequence[int], temperatures: Sequence[float], rounds: int
) -> None:
    """Before engines are started."""
    for name, given, known in (
        ("methods", methods, (*METHODS, "stock", *FIXED)),
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
    settings = {"aimd": {"budget": "aimd", "matching": "paper"}} | {name: {"budget": "fixed"} for name in FIXED}
    arguments: dict[str, Any] = {
        "model": str(workload.model),
        "dtype": place.dtype,
        "max_model_len": context,
        "max_num_seqs": place.most,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "max_num_batched_tokens": max(context, 2560),
        "worker_extension_cls": "rhymed.histospec.extension.Extension",
        "additional_config": {"rhymed": unkeyed.get(method, settings.get(method, {}))},
        **dict(place.memory),
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
    """`failed`: why engines are left out, by method."""

    def __init__(
        self,
        workload: BenchWorkload,
        methods: Sequence[str],
        place: Place = Place(),
        more: dict[str, Any] | None = None,
    ) -> None:
        """`more`: arguments of vllm.LLM for all engines."""
        self.workload = workload
        context = max(map(len, workload.prompts)) + workload.longest + WIDTH + 1
        self.failed: dict[str, str] = {}
        self.engines = {
            method: EngineProcess(
                engine(workload, method, context, place) | (more or {}),
                fix_expand=method in ("ngram", "suffix") and not place.gpu,
                stock=method == "stock",
                exact=place.exact,
            )
            for method in methods
        }
        self.each(methods, lambda method, process: process.ready())
        self.history: dict[float, dict[int, list[list[int]]]] = {}  # temperature -> prompt -> responses of epoch 1

    def close(self) -> None:
        for process in self.engines.values():
            process.close()

    def each(self, methods: Sequence[str], work: Callable[[str, EngineProcess], T]) -> dict[str, T]:
        """The result of `work`, by method. An engine that fails is left out from now on."""
        found: dict[str, T] = {}
        for method in methods:
            if method in self.engines:
                try:
                    found[method] = work(method, self.engines[method])
                except FAILURES as error:
                    self.failed[method] = f"{type(error).__name__}: {error}"
                    print(f"{method} is left out: {self.failed[method]}", flush=True)
                    self.engines.pop(method).close()
        return found

    def first_epoch(self, temperature: float, prompts: int) -> None:
        """Generates the history that all methods share. Raises `RhymedError` if the engines that could are gone."""
        group = GROUP if temperature else 1
        requests = [
            self._request(prompt, number, temperature, 0) for prompt in range(prompts) for number in range(group)
        ]
        for method in ("history", "keyed"):
            found = self.each([method], lambda _, process: process.run(requests, 64, whole=True).responses)
            if found:
                self.history[temperature] = _by_prompt(requests, found[method])
                return
        raise RhymedError(f"no engine with keyed sampling generates epoch 1: {self.failed}")

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
        unknown = range(start, start + needed) if cell.epoch == 1 else range(0)

        def begin(method: str, process: EngineProcess) -> None:
            history = self.history[cell.temperature]
            if method == "again":
                history = _by_prompt(requests, process.run(requests, 64, whole=True).responses)
            process.forget()
            for prompt in sorted({*prompts, *history}):
                known = method != "siblings" and (prompt not in unknown or method == "again")
                process.remember(str(prompt), self.workload.prompts[prompt], history.get(prompt, []) if known else [])
            process.begin(requests, cell.batch)

        running = list(self.each([*self.engines], begin))
        time.sleep(0.3)  # to build the indexes, which in a run exist long before they are needed
        running = running[round % len(running) :] + running[: round % len(running)] if running else []
        while running:
            advanced = self.each(running, lambda _, process: process.advance(SLICE_S))
            running = [method for method in running if advanced.get(method)]
        return self.each([*self.engines], lambda _, process: process.finish())

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
    rows = {method: _row(method, runs) for method in bench.engines}
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
    base_name = next((name for name in BASES if all(name in run for run in runs)), method)
    base = [run[base_name] for run in runs]
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
            equal, both = agreement(mine, keyed)
            same, compared = same + equal, compared + both
    return same, compared


def agreement(mine: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """(tokens before the first difference, tokens that both have)."""
    both = min(len(mine), len(other))
    return next((place for place in range(both) if mine[place] != other[place]), both), both


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


def has_arctic() -> bool:
    """Whether arctic-inference can be imported, whose suffix trees some benchmarks compare with."""
    try:
        return importlib.util.find_spec("arctic_inference.suffix_decoding") is not None
    except ModuleNotFoundError:
        return False


# Workloads of the engine benchmarks: prompts of the bench policy, and of a small chat model.

OUT = Path("runs/models/arithmetic")
"""The bench policy, which `make bench-model` builds."""

RESPONSE = 1536  # of its tokens at most, as in configs/arithmetic.toml
PROMPTS = 64
CHAT_RESPONSE = 200  # tokens
QUESTIONS = {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 3}


@dataclass(frozen=True)
class BenchWorkload:
    """`prompts`: token ids. Responses have at most `longest` tokens."""

    name: str
    model: Path
    prompts: list[list[int]]
    longest: int


def workloads(model: Path | None = None) -> Iterator[BenchWorkload]:
    """Of one model, of a run (its prompts and newest checkpoint), or of the bench policy and then SmolLM2.
    Raises `ConfigError` if the policy is missing."""
    if model is not None and (model / "store").is_dir():
        yield _of_run(model)
        return
    policy = model is not None and model.resolve() == OUT.resolve()  # any other folder is asked other questions
    if model is None or policy:
        if not (OUT / "train.jsonl").is_file():
            raise ConfigError(f"{OUT} does not exist: `make bench-model` builds it")
        yield workload_of(
            "bench policy", Config(model=Model(path=str(OUT)), data=Data(path=str(OUT / "train.jsonl")))
        )
    if not policy:
        chat = Model(path=str(model)) if model else Model()
        questions = Data(task="chain_sum", args=QUESTIONS, size=PROMPTS)
        yield workload_of(Path(chat.path).name, Config(model=chat, data=questions), CHAT_RESPONSE)


def _of_run(run: Path) -> BenchWorkload:
    config, checkpoint = load_run(run), newest(run / "checkpoints")
    workload = workload_of(config.run.name, config, config.rollout.max_response_length)
    return replace(workload, model=checkpoint.folder) if checkpoint else workload


def workload_of(name: str, config: Config, longest: int = RESPONSE) -> BenchWorkload:
    from rhymed.inputs.datasets import load_rows
    from rhymed.inputs.models import resolve_model
    from rhymed.inputs.render import load_renderer

    render = load_renderer(config)
    rows = list(itertools.islice(load_rows(config), PROMPTS))
    return BenchWorkload(name, resolve_model(config), [render(name, row) for row in rows], longest)
