"""`rhymed bench train`: memory and time of one training step on long rows, by length and vocabulary.

Models have the shape of SmolLM2-135M and random weights. Each cell is a process of its own: forward, backward and an
AdamW step on one micro-batch, which is one row: one response, or three responses that share a prompt. Memory is the
process's peak without what it needs for its libraries; on a GPU, the peak of torch's allocator.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rhymed.gpus import inventory
from rhymed.gpus.peaks import peak_of

VARIANTS = ("plain", "checkpointing", "bfloat16", "lora")
PROMPT = 64
LIBRARIES = 0.4 * 2**30
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Cell:
    tokens: int
    vocabulary: int
    variant: str  # one of VARIANTS; lora has checkpointing as well
    shared: bool = False  # three responses of a quarter of the row each, behind one prompt
    layers: int = 30
    device: Literal["auto", "cpu", "cuda"] = "auto"


def run(quick: bool, tokens: list[int] | None = None, methods: list[str] | None = None) -> dict[str, Any]:
    """`methods`: variants. Cells that do not fit the machine's free memory are left out."""
    layers = 2 if quick else SHAPE["num_hidden_layers"]
    lengths = tokens or ([512] if quick else [2048, 8192, 32768])
    if unknown := set(methods or ()) - set(VARIANTS):
        raise SystemExit(f"no such variant: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    cells = [
        Cell(length, vocabulary, variant, shared, int(layers))
        for length, vocabulary in itertools.product(lengths, (49152,) if quick else (49152, 151936))
        for variant in methods or (VARIANTS[:2] if quick else VARIANTS)
        for shared in (False, True)
    ]
    rows = []
    print(" tokens vocabulary variant        row      peak GiB        s  s of processors")
    for cell in cells:
        found = asdict(cell) | measure(cell)
        rows.append(found)
        row = "shared" if cell.shared else "one"
        text = f"{cell.tokens:>7} {cell.vocabulary:>10} {cell.variant:<14} {row:<8} "
        if "skipped" in found:
            print(text + found["skipped"], flush=True)
        else:
            print(text + f"{found['peak_gib']:>8.2f} {found['wall_s']:>8.1f} {found['cpu_s']:>16.1f}", flush=True)
    return {"layers": layers, "cells": rows}


def measure(cell: Cell) -> dict[str, Any]:
    """In a process of its own, whose peak is the cell's."""
    import psutil

    free, need = psutil.virtual_memory().available, estimate(cell)
    if cell.device != "cuda" and need > free:
        return {"skipped": f"needs about {need / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free"}
    child = [sys.executable, "-m", __name__, json.dumps(asdict(cell))]
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | _rates(cell, found)


def _rates(cell: Cell, found: dict[str, Any]) -> dict[str, float]:
    """`mfu`: share of the GPU's published peak, of the operations that a step needs at least; None: it is unknown."""
    rates = {"tokens_per_s": cell.tokens / found["wall_s"]}
    gpus = inventory.here() if cell.device != "cpu" else None
    peak = peak_of(gpus.gpus[0].kind, gpus.gpus[0].bytes) if gpus else None
    if peak is None:
        return rates
    forward = 2 * _parameters(cell) * cell.tokens + 2 * cell.layers * SHAPE["hidden_size"] * cell.tokens**2
    factor = 2 if cell.variant == "lora" else 3  # frozen weights get no gradient; nothing is counted twice
    dtype = "bfloat16" if cell.variant == "bfloat16" else "float32"
    return rates | {"mfu": factor * forward / found["wall_s"] / peak.flops(dtype)}


def _parameters(cell: Cell) -> int:
    hidden, inner, key_value = 576, 1536, 192
    return cell.vocabulary * hidden + cell.layers * hidden * (2 * hidden + 2 * key_value + 3 * inner)


def estimate(cell: Cell) -> float:
    """Bytes, of the same parts as `rhymed check` estimates."""
    hidden, inner, key_value = 576, 1536, 192
    parameters = _parameters(cell)
    layer = 6 * hidden + 3 * inner + 2 * key_value  # numbers that a token keeps for the gradient
    lora, sparing = cell.variant == "lora", cell.variant in ("checkpointing", "lora")
    kept = cell.layers * hidden + layer if sparing else cell.layers * layer
    numbers = parameters * (1 if lora else 4) + cell.tokens * kept + (0 if lora else cell.vocabulary * hidden)
    return 4 * numbers + min(1 << 28, 4 * cell.tokens * cell.vocabulary) + LIBRARIES


def step(cell: Cell) -> dict[str, float]:
    """In this process."""
    import torch

    policy = build(cell)
    batch = _batch(cell)
    optimizer = torch.optim.AdamW(policy.trained(), lr=1e-5, fused=True)
    weight = 1 / len(batch.target_N)
    base, before = _peak(policy.device), resource.getrusage(resource.RUSAGE_SELF)
    begun = time.perf_counter()
    policy.backward(batch, lambda logp_N, entropy_N, flat_N: -weight * logp_N.sum())
    optimizer.step()
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_s": time.perf_counter() - begun,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_gib": _peak(policy.device) / 2**30,
        "before_gib": base / 2**30,  # libraries and weights
    }


def build(cell: Cell) -> Any:
    """A policy with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rhymed.config import Lora
    from rhymed_workers.trainer.policy.backbone import Compute, prepare
    from rhymed_workers.trainer.policy.lora import LoraPolicy
    from rhymed_workers.trainer.policy.policy import Policy

    sparing = cell.variant in ("checkpointing", "lora")
    compute = Compute(cell.device, "bfloat16" if cell.variant == "bfloat16" else "float32", checkpointing=sparing)
    shape = {**SHAPE, "num_hidden_layers": cell.layers}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=cell.vocabulary, max_position_embeddings=1 << 17, **shape))
    if cell.variant != "lora":
        prepared = prepare(model.to(compute.where()), checkpointing=sparing)
        return Policy(prepared, dtype=getattr(torch, compute.dtype))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        return LoraPolicy(Lora(), Path(folder), compute=compute)


def _batch(cell: Cell) -> Any:
    import numpy as np

    from rhymed_workers.trainer.policy.packing import Sequences, micro_batches

    draw = np.random.default_rng(0)
    quarter = cell.tokens // 4
    lengths = (
        [cell.tokens - 3 * quarter, quarter, quarter, quarter] if cell.shared else [PROMPT, cell.tokens - PROMPT]
    )
    prompt, *responses = (draw.integers(0, cell.vocabulary, length) for length in lengths)
    samples = [Sequences(prompt, response) for response in responses]
    (batch,) = micro_batches(samples, range(len(samples)), cell.tokens)
    return batch


def _peak(device: Any) -> float:
    """Bytes."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(step(Cell(**json.loads(sys.argv[1])))))
