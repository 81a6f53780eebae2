"""Keyed sampling on a GPU: the kernels, torch operations, and what vLLM's first model runner does, in turns.

Each cell is a step: logits [rows, vocabulary] in bfloat16, requests with 8 drafts of which half are right (one row
per request where there are fewer than 18 rows), temperature 1, log-probs of the sampled tokens. `kernels` is one step
as the engine makes it, transfers included, until the tokens are on the host; `launched` is until the host is free
again. `vllm` draws every row once from softmax and exponential noise, without drafts. Tokens are compared with the
CPU sampler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = (1, 64, 256, 2304)
VOCABULARIES = (49_152, 152_064, 262_144)
DRAFTS = 8
COMPARED = 288  # rows that are compared with the CPU sampler


def run(quick: bool) -> dict[str, Any]:
    """Medians over turns, and the device's name."""
    import torch

    name = torch.cuda.get_device_name()
    rows, vocabularies = (ROWS[:2], VOCABULARIES[:1]) if quick else (ROWS, VOCABULARIES)
    cells = [cell(count, size, "cuda", 5 if quick else 40) for size in vocabularies for count in rows]
    print(f"{name}; microseconds a step, bfloat16 logits; GB/s: of the logits, read once")
    print(
        f"{'vocabulary':>10}{'rows':>6}{'kernels':>9}{'launched':>9}{'torch':>9}{'vLLM':>9}{'GB/s':>7}{'MiB':>6}{'equal':>12}"
    )
    for made in cells:
        print(
            f"{made['vocabulary']:>10}{made['rows']:>6}{made['kernels_us']:>9.0f}{made['launched_us']:>9.0f}"
            f"{made['torch_us']:>9.0f}{made['vllm_us']:>9.0f}{made['gb_a_s']:>7.0f}{made['scratch_mib']:>6.0f}"
            f"{made['equal']:>6}/{made['compared']}"
        )
    return {"device": name, "cells": cells}


def cell(count: int, vocabulary: int, device: str, turns: int) -> dict[str, Any]:
    """One size. `scratch_mib`: memory of a step besides its logits. `equal` of `compared` tokens are the CPU's."""
    import torch

    from rhymed.histospec.sampling import device as operations
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
        "torch": lambda: fetch(operations.verify(about, z, drafted, True)),
        "vllm": lambda: fetch(_vllm(z)),
    }
    tokens = kernels()[0].numpy()[: len(right), : right.shape[1]]
    seconds = _in_turns(ways, device, turns)
    compared = right >= 0
    best = statistics.median(seconds["kernels"])
    return {
        "rows": count,
        "vocabulary": vocabulary,
        **{f"{way}_us": 1e6 * statistics.median(taken) for way, taken in seconds.items()},
        "launched_us": 1e6 * statistics.median(launched),
        "gb_a_s": logits.nbytes / best / 1e9,
        "scratch_mib": _scratch(kernels, device) / 2**20,
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
