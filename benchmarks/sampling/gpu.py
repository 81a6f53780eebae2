"""Keyed sampling on a GPU: the kernels, and what vLLM's first model runner does, in turns.

Each cell is a step: logits [rows, vocabulary] in bfloat16, requests with 8 drafts of which half are right (one row
per request where there are fewer than 18 rows), temperature 1, log-probs of the sampled tokens. `kernels` is one step
as the engine makes it, transfers included, until the tokens are on the host; `launched` is until the host is free
again. `vllm` draws every row once from softmax and exponential noise, without drafts. Tokens are compared with the
CPU sampler.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.part import Recorder

CELLS = (  # rows, vocabulary: in the order that uses a short time best
    (64, 49_152),
    (1, 152_064),
    (64, 152_064),
    (256, 152_064),
    (2304, 152_064),
    (2304, 49_152),
    (256, 262_144),
    (1, 49_152),
)
SMALL = ((1, 5_000),)
DRAFTS = 8
COMPARED = 288  # rows that are compared with the CPU sampler


def record(record: Recorder) -> dict[str, Any]:
    """A line for each size. On a processor in Triton's interpreter, which shows tokens and no times."""
    if not record.gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    found = {}
    for rows, vocabulary in SMALL if record.small else CELLS:
        name, turns = f"{rows} x {vocabulary}", 2 if record.small else 20
        found[name] = record.check(name, partial(cell, rows, vocabulary, record.device, turns))
    return {"cells": found, "good": all(one and one["ok"] for one in found.values())}


def cell(count: int, vocabulary: int, device: str, turns: int) -> dict[str, Any]:
    """One size. `scratch_mib`: memory of a step besides its logits. `equal` of `compared` tokens are the CPU's."""
    import torch

    from rhymed.histospec.sampling import fused
    from rhymed.histospec.sampling.transfer import fetch

    logits = (torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(0)) * 2.5).to(torch.bfloat16)
    about, drafts, right = _requests(logits)
    z, drafted = logits.to(device), None if drafts is None else drafts.to(device)
    launched: list[float] = []

    def kernels() -> Any:
        began = time.perf_counter()
        made = fused.verify(about, z, drafted, True)
        launched.append(time.perf_counter() - began)
        return fetch(made)

    ways: dict[str, Callable[[], Any]] = {
        "kernels": kernels,
        "vllm": lambda: fetch(_vllm(z)),
    }
    tokens = kernels()[0].numpy()[: len(right), : right.shape[1]]
    seconds = _in_turns(ways, device, turns)
    compared = right >= 0
    best = statistics.median(seconds["kernels"])
    return {
        "ok": bool((tokens == right)[compared].all()),
        **{f"{way}_us": round(1e6 * statistics.median(taken), 1) for way, taken in seconds.items()},
        "launched_us": round(1e6 * statistics.median(launched), 1),
        "gb_a_s": round(logits.nbytes / best / 1e9, 1),
        "scratch_mib": round(_scratch(kernels, device) / 2**20, 1),
        "equal": int((tokens == right)[compared].sum()),
        "compared": int(compared.sum()),
    }


def _requests(logits: Any) -> tuple[Any, Any, Any]:
    """(the requests of these rows, their drafts, the CPU sampler's tokens of the first requests)."""
    import torch

    from rhymed.histospec.sampling import cpu, noise

    count, each = len(logits), 1 + DRAFTS if len(logits) >= 2 * (1 + DRAFTS) else 1
    first_B = np.array([*range(0, count - each + 1, each), count])
    key_B, position_B = np.arange(len(first_B) - 1, dtype=np.uint64), np.full(len(first_B) - 1, 100)
    about = cpu.Rows(cpu.NO_LOGITS, first_B, cpu.NO_DRAFTS, key_B, position_B, np.ones(len(key_B), np.float32))
    drafts = None
    if each > 1:
        numbers_B = np.diff(first_B) - 1
        drafts = torch.zeros(int(numbers_B.sum()), dtype=torch.int32)
        for request in range(min(len(key_B), COMPARED // each)):
            start = int(first_B[request])
            for j in range(DRAFTS // 2):
                drafts[start - request + j] = noise.draw(logits[start + j].float().numpy(), request, 100 + j)
    few = max(1, min(len(key_B), COMPARED // each))
    last = int(first_B[few])
    rows = about.cut(slice(0, few))._replace(logits_NV=logits[:last].float().numpy())
    if drafts is not None:
        rows = rows._replace(drafts=drafts[: last - few].numpy().astype(np.int64))
    return about, drafts, cpu.verify(rows, False)[0]


def _vllm(z: Any) -> Any:
    """What `Sampler.random_sample` of vLLM computes for requests without seeds, and the log-probs."""
    import torch

    z = z.float()
    probabilities = z.softmax(-1, dtype=torch.float32)
    tokens = probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)
    return torch.stack((tokens.float(), z.log_softmax(-1).gather(1, tokens[:, None])[:, 0]))


def _in_turns(ways: dict[str, Callable[[], Any]], device: str, turns: int) -> dict[str, list[float]]:
    """Seconds of each call; the first, which compiles and allocates, is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, work in ways.items():
            _wait(device)
            began = time.perf_counter()
            work()
            _wait(device)
            if turn:
                seconds[way].append(time.perf_counter() - began)
    return seconds


def _scratch(work: Callable[[], Any], device: str) -> int:
    """Bytes that a call allocates at most."""
    import torch

    if device == "cpu":
        return 0
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    return int(torch.cuda.max_memory_allocated() - before)


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
