"""`python -m benchmarks train`, and the part `trainer` of `python -m benchmarks gpu`: training steps of models with
random weights.

Each cell is forward, backward and an AdamW step on one micro-batch, in this process: a first step, which compiles and
allocates, and then the measured steps. Memory is the peak of torch's allocator on a GPU, else that of the process. On
a GPU, loss, log-probs and gradients of a small model are first compared with a CPU's.
"""

from __future__ import annotations

import copy
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.part import Recorder
from benchmarks.gpu.peaks import peak_of

PROMPT = 64
LIBRARIES = 0.4 * 2**30
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"checkpointing": True},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"lora": True, "checkpointing": True},
}


@dataclass(frozen=True)
class Cell:
    """`tokens` in `rows` of equal length, each a prompt and its `responses`. `steps`: timed, after the first."""

    tokens: int
    shape: str = "135m"
    dtype: str = "float32"
    checkpointing: bool = False
    lora: bool = False
    rows: int = 1
    responses: int = 1
    vocabulary: int = 0  # 0: that of the shape
    layers: int = 0
    steps: int = 0

    @property
    def changes(self) -> dict[str, int]:
        """Size of the vocabulary of the shape."""
        found = {"vocab_size": self.vocabulary, "num_hidden_layers": self.layers}
        return {name: value for name, value in found.items() if value}

    def __str__(self) -> str:
        rows = f"{self.rows} rows" if self.rows > 1 else "one row"
        shared = f" of {self.responses} responses to a prompt" if self.responses > 1 else ""
        words = f"{models.SHAPES[self.shape]['vocab_size'] if not self.vocabulary else self.vocabulary} words"
        more = ["checkpointing"] * self.checkpointing + ["LoRA"] * self.lora
        return ", ".join([self.shape, f"{self.tokens} tokens in {rows}{shared}", words, self.dtype, *more])


def run(quick: bool, tokens: list[int] | None = None, methods: list[str] | None = None) -> dict[str, Any]:
    """`methods`: variants. Measures on this machine's GPU, or on its processors, where cells that do not fit the free
    memory are left out. Raises `SystemExit` for an unknown variant."""
    from rhymed.placement import gpus

    if unknown := set(methods or ()) - set(VARIANTS):
        raise SystemExit(f"no such variant: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    lengths = tokens or ([512] if quick else [2048, 8192, 32768])
    device = "cuda" if gpus.here() else "cpu"
    layers, steps = 2 if quick else 0, 3 if device == "cuda" else 0
    cells = [
        Cell(length, vocabulary=words, responses=responses, layers=layers, steps=steps, **form)
        for length, words in itertools.product(lengths, (49152,) if quick else (49152, 151936))
        for form in (VARIANTS[name] for name in methods or list(VARIANTS)[: 2 if quick else None])
        for responses in (1, 3)
    ]
    record = Recorder("train", None, device)
    found = {str(cell): record.check(str(cell), partial(step, cell, device)) for cell in cells}
    return {"device": device, "cells": found, "good": None not in found.values()}


def record(record: Recorder) -> None:
    for kind, at in (("shared prompts", (40, [60, 33, 120])), ("one response", (70, [200]))):
        for dtype in ("bfloat16", "float32"):
            record.check(f"equal to a CPU: {kind}, {dtype}", partial(_equal, record.device, dtype, *at))
    record.check("an optimizer step, its moments, a folder", partial(_learner, record.device))
    for cell in _cells(small=record.small):
        record.check(str(cell), partial(step, cell, record.device))
    if record.gpu:
        record.check("FlexAttention with other lengths", partial(_compiled, record.device))


def _cells(*, small: bool) -> list[Cell]:
    if small:
        return [Cell(200, "tiny", steps=1), Cell(200, "tiny", responses=3, steps=1)]
    large = Cell(16384, "1.5b", "bfloat16", checkpointing=True, rows=16, steps=3)
    return [
        Cell(16384, dtype="bfloat16", rows=16, steps=3),
        large,
        replace(large, rows=2, responses=8),
        Cell(16384, rows=16, steps=3),  # in float32: FlexAttention
        Cell(16384, rows=2, responses=8, steps=3),
        Cell(4096, "1.5b", "bfloat16", rows=4, steps=3),
    ]


def step(cell: Cell, device: str) -> dict[str, Any]:
    """Seconds, tokens per second, share of the GPU's published peak, and GiB. A cell that does not fit the machine's
    memory is left out with a reason."""
    import torch

    need = estimate(cell)
    if device == "cpu":
        import psutil

        if need > (free := psutil.virtual_memory().available):
            return {"skipped": f"needs about {need / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free"}
    _free(device)
    policy = build(cell, device)
    optimizer = torch.optim.AdamW(policy.trained(), lr=1e-5, fused=True)
    batch = batch_of(models.config_of(cell.shape, **cell.changes).vocab_size, *_lengths(cell))
    weight, before = 1 / len(batch.target_N), _peak(device)
    times, processors = list[float](), list[float]()
    for _ in range(1 + cell.steps):
        _wait(device)
        began, busy = time.perf_counter(), time.process_time()
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: -weight * logp_N.sum())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait(device)
        times.append(time.perf_counter() - began)
        processors.append(time.process_time() - busy)
    best = statistics.median(times[1:] or times)
    found: dict[str, Any] = {
        "model": f"random weights of {cell.shape}",
        "tokens": batch.tokens,
        "first_s": round(times[0], 3),
        "step_s": [round(one, 4) for one in times[1:]],
        "cpu_s": round(statistics.median(processors[1:] or processors), 3),
        "tokens_a_s": round(batch.tokens / best, 1),
        "peak_gib": round(_peak(device) / 2**30, 3),
        "before_gib": round(before / 2**30, 3),  # libraries, and weights
    }
    if device != "cpu":
        about = torch.cuda.get_device_properties(0)
        if peak := peak_of(about.name, about.total_memory):
            found["mfu"] = round(_operations(cell, batch) / best / peak.flops(cell.dtype), 4)
    return found


def _lengths(cell: Cell) -> tuple[int, list[int], int]:
    """(tokens of a prompt, of each of its responses, rows)."""
    row = cell.tokens // cell.rows
    if cell.responses == 1:
        return min(PROMPT, row // 2), [row - min(PROMPT, row // 2)], cell.rows
    each = row // (cell.responses + 1)
    return row - cell.responses * each, [each] * cell.responses, cell.rows


def _parameters(cell: Cell) -> int:
    shape = {**models.SHAPES[cell.shape], **cell.changes}
    hidden, inner, words = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    key_value = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    layers = shape["num_hidden_layers"] * hidden * (2 * hidden + 2 * key_value + 3 * inner)
    return int(words * hidden * (1 if shape["tie_word_embeddings"] else 2) + layers)


def _operations(cell: Cell, batch: Any) -> float:
    """Operations that a step needs at least: nothing is counted twice, and frozen weights get no gradient."""
    shape = {**models.SHAPES[cell.shape], **cell.changes}
    seen = 0  # twice the pairs of tokens that attend to each other: of a prompt, and of each response behind it
    for bound in batch.bounds:
        prompt = bound[1] - bound[0]
        ends = itertools.pairwise(bound[1:])
        seen += prompt**2 + sum((prompt + last - first) ** 2 - prompt**2 for first, last in ends)
    attention = 2 * shape["num_hidden_layers"] * shape["hidden_size"] * seen
    return float((2 if cell.lora else 3) * (2 * _parameters(cell) * batch.tokens + attention))


def estimate(cell: Cell) -> float:
    """Memory in bytes, of the same parts as `rhymed check` estimates."""
    shape = {**models.SHAPES[cell.shape], **cell.changes}
    hidden, inner, words = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    key_value = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    layer = 6 * hidden + 3 * inner + 2 * key_value  # numbers that a token keeps for the gradient
    kept = shape["num_hidden_layers"] * (hidden if cell.checkpointing else layer) + layer * cell.checkpointing
    numbers = _parameters(cell) * (1 if cell.lora else 4) + cell.tokens * kept + (0 if cell.lora else words * hidden)
    return float(4 * numbers + min(1 << 28, 4 * cell.tokens * words) + LIBRARIES)


def build(cell: Cell, device: str) -> Any:
    """A policy with random weights."""
    import torch

    from rhymed.core.config import Lora
    from rhymed_workers.trainer.policy.backbone import Compute
    from rhymed_workers.trainer.policy.lora import LoraPolicy

    model = models.network(cell.shape, device, **cell.changes)
    if not cell.lora:
        return _policy(model, cell.dtype, checkpointing=cell.checkpointing)
    compute: Any = Compute(device, cell.dtype, checkpointing=cell.checkpointing)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        torch.manual_seed(0)
        return LoraPolicy(Lora(), Path(folder), compute=compute)


def _policy(model: Any, dtype: str, *, checkpointing: bool = False) -> Any:
    import torch

    from rhymed_workers.trainer.policy.backbone import prepare
    from rhymed_workers.trainer.policy.policy import Policy

    return Policy(prepare(model, checkpointing=checkpointing), dtype=getattr(torch, dtype))


def batch_of(vocabulary: int, prompt: int, responses: Sequence[int], rows: int = 1, seed: int = 0) -> Any:
    """One micro-batch of `rows` rows, each a prompt with these responses."""
    import numpy as np

    from rhymed_workers.trainer.policy.packing import Sequences, micro_batches

    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(rows):
        begin = draw.integers(2, vocabulary, prompt)
        samples += [Sequences(begin, draw.integers(2, vocabulary, length)) for length in responses]
    (batch,) = micro_batches(samples, range(len(samples)), 1 << 30)
    return batch


def _gradients(policy: Any, batch: Any) -> tuple[float, dict[str, Any], Any]:
    """(loss, gradients by parameter, log-probs), on the CPU."""
    weight = 1 / len(batch.target_N)
    policy.zero_grad()
    value = policy.backward(batch, lambda logp_N, entropy_N, flat_N: -weight * logp_N.sum())
    found = {name: p.grad.float().cpu() for name, p in policy.named_parameters() if p.grad is not None}
    return float(value), found, policy.logprobs(batch).float().cpu()


def _equal(device: str, dtype: str, prompt: int, responses: list[int]) -> dict[str, Any]:
    """Largest differences of a small model with grouped heads between `device` and a CPU in float32."""
    model = models.network("tiny", "cpu")
    batch = batch_of(512, prompt, responses, rows=2)
    value, gradients, logp = _gradients(_policy(copy.deepcopy(model), "float32"), batch)
    other, others, other_logp = _gradients(_policy(model.to(device), dtype), batch)
    if gradients.keys() != others.keys():
        raise AssertionError(f"gradients of {sorted(gradients.keys() ^ others.keys())} are on one side only")
    errors = [(one - others[n]).norm() / one.norm().clamp_min(1e-12) for n, one in gradients.items()]
    return {
        "loss": [value, other],
        "logprob": float((logp - other_logp).abs().max()),
        "gradient": float(max(errors)),  # relative, of the worst parameter
    }


def _learner(device: str) -> dict[str, Any]:
    from rhymed.core.config import Trainer
    from rhymed_workers.trainer.optim import moments
    from rhymed_workers.trainer.optim import optimizer as optim

    policy = _policy(models.network("tiny", device), "bfloat16")
    made = optim.build(Trainer(), policy.trained())
    _gradients(policy, batch_of(512, 40, [60, 33], rows=2))
    norm = optim.step(made, 0.0, 1.0, "step 1")
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder))
        files = sorted(file.name for file in Path(folder).iterdir())
    return {"norm": norm, "moments": len(moments.tensors(made, policy.named_parameters())), "files": files}


def _compiled(device: str) -> dict[str, Any]:
    """The number of compiled `frames` must stop growing: else every micro-batch is compiled again."""
    from torch._dynamo.utils import counters

    policy = _policy(models.network("tiny", device), "float32")
    seconds, frames = [], []
    for number, length in enumerate((100, 230, 377, 512, 800, 1111)):
        began = time.monotonic()
        _gradients(policy, batch_of(512, 20 + number, [length, length // 2], rows=1 + number % 3, seed=number))
        _wait(device)
        seconds.append(round(time.monotonic() - began, 2))
        frames.append(int(counters["frames"]["ok"]))
    return {"seconds": seconds, "frames": frames, "breaks": len(counters["graph_break"])}


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _free(device: str) -> None:
    """Memory that earlier cells still hold, in bytes; resets their peak."""
    import torch

    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(AttributeError):  # another C library
        _trim()
    Path("/proc/self/clear_refs").write_text("5")


def _trim() -> None:
    import ctypes

    trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    trim(0)


def _peak(device: str) -> float:
    """Free memory in bytes."""
    import torch

    if device != "cpu":
        return float(torch.cuda.max_memory_allocated())
    with open("/proc/self/status") as file:
        return 1024.0 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
