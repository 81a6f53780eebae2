"""`python -m benchmarks store`: the store's write and read speed, over ipc, compared with that of the disk.

The store is the real service in its own process. The payload is the token array as sent (uint32). Log-probs of the
same size are sent and stored with it but not counted. The disk's speed is that of a plain file in the same folder
with the same bytes per fdatasync, measured in turns with the store. Tokens follow Zipf's law (they compress a little
worse than text: 1.43 against 1.34 bytes per token in responses of 300 tokens) or are uniform, which is the worst
case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import uvloop
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.messages import SampleId, SampleInfo
from rhymed.core.run.layout import layout_of
from rhymed_store.client import NewSample, StoreClient, connect

VOCABULARY = 49_152
CLIENTS = 8
IN_FLIGHT = 8  # unacknowledged messages per client
GROUP = 8  # samples per message
PROMPT_TOKENS = 128
ACCEPTED = 0.8  # share of accepted drafts among the tokens, in random order: the worst case

_SERVE = """
import sys
from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.core.service.process import serve
from rhymed_store.service import StoreService
config = Config.model_validate_json(sys.argv[1])
sys.exit(serve(lambda: StoreService(config.store, layout_of(config))))
"""


def run(quick: bool) -> dict[str, float]:
    """Measures and prints a table. Returns the numbers; units are in the names."""
    results: dict[str, float] = uvloop.run(_run(quick))  # the event loop of every process of a run
    return results


class _Bench(NamedTuple):
    clients: list[StoreClient]
    folder: Path
    process: psutil.Process

    def cpu_s(self) -> float:
        """CPU seconds that the store has used."""
        return _cpu_s(self.process)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _run(quick: bool) -> dict[str, float]:
    results: dict[str, float] = {}
    repetitions, megabytes = (2, 8) if quick else (7, 96)
    for kind in ("text", "random"):
        for length in (4096, 512):
            async with _store() as bench:
                results |= await _ingest(bench, kind, length, repetitions, megabytes)
    for kind in ("text", "random"):
        async with _store() as bench:
            results |= await _history(bench.clients[0], kind, 100 if quick else 500)
    for length in (300, 32):
        async with _store() as bench:
            results |= await _rest(bench.clients[0], length, 200 if quick else 1000)
    for name, value in results.items():
        print(f"{name:<44} {value:>10.2f}")
    return results


async def _ingest(bench: _Bench, kind: str, length: int, repetitions: int, megabytes: int) -> dict[str, float]:
    clients = bench.clients
    rates: list[float] = []
    disk_rates: list[float] = []
    syncs: list[float] = []
    cpu: list[float] = []
    sender: list[float] = []
    here = psutil.Process()
    make = _Samples(kind)
    rounds = max(1, megabytes * 1_000_000 // (4 * length * GROUP * CLIENTS * IN_FLIGHT))
    for repetition in range(-1, repetitions):  # the first one warms up
        loads = [[make.group(length, repetition + 1) for _ in range(rounds)] for _ in range(CLIENTS * IN_FLIGHT)]
        size = 4 * length * GROUP * rounds * CLIENTS * IN_FLIGHT
        before = await clients[0].stats()
        cpu_before, sender_before, began = bench.cpu_s(), _cpu_s(here), time.perf_counter()
        await asyncio.gather(*(_send(clients[i % CLIENTS], load) for i, load in enumerate(loads)))
        seconds, cpu_s = time.perf_counter() - began, bench.cpu_s() - cpu_before
        sender_s = _cpu_s(here) - sender_before
        commits = (await clients[0].stats()).commits - before.commits
        disk_s = await asyncio.to_thread(_write_plainly, bench.folder / "plain", size, commits)
        if repetition >= 0:
            rates.append(size / seconds / 1e6)
            disk_rates.append(size / disk_s / 1e6)
            syncs.append(size / commits / 1e6)
            cpu.append(1000 * cpu_s / (size / 1e6))
            sender.append(1000 * sender_s / (size / 1e6))
        await clients[0].forget_logprobs(repetition + 1)
    stats = await clients[0].stats()
    name = f"ingest_{kind}_{length}"
    return {
        f"{name}_mb_per_s": statistics.median(rates),
        f"{name}_mb_per_s_min": min(rates),
        f"{name}_mb_per_s_max": max(rates),
        f"{name}_disk_mb_per_s": statistics.median(disk_rates),
        f"{name}_over_disk": statistics.median(a / b for a, b in zip(rates, disk_rates, strict=True)),
        f"{name}_store_cpu_ms_per_mb": statistics.median(cpu),
        f"{name}_store_cpu_us_per_sample": statistics.median(cpu) * 4 * length / 1000,
        f"{name}_sender_cpu_us_per_sample": statistics.median(sender) * 4 * length / 1000,
        f"{name}_mb_a_commit": statistics.median(syncs),
        f"{name}_bytes_a_token_at_rest": stats.used_bytes / stats.tokens,
    }


async def _send(client: StoreClient, load: list[list[NewSample]]) -> None:
    for group in load:
        await client.put_samples(group, deadline_s=120)


async def _history(client: StoreClient, kind: str, fetches: int) -> dict[str, float]:
    make = _Samples(kind)
    for step in range(4):
        group = make.group(4096, step, prompt=0)
        await client.put_samples(group)
    prompt, took, empty = group[0].info.id.prompt, [], []
    for _ in range(fetches):
        began = time.perf_counter()
        samples = await client.history(prompt, before_step=4, limit=16)
        between = time.perf_counter()
        nothing = await client.history(prompt, before_step=0)
        took.append(1000 * (between - began))
        empty.append(1000 * (time.perf_counter() - between))
        assert sum(len(sample.tokens) for sample in samples) == 16 * 4096
        assert not nothing
    ordered = sorted(took)
    return {
        f"history_{kind}_empty_ms": statistics.median(empty),
        f"history_{kind}_16x4096_ms": statistics.median(took),
        f"history_{kind}_16x4096_ms_p90": ordered[int(0.9 * len(ordered))],
    }


async def _rest(client: StoreClient, length: int, groups: int) -> dict[str, float]:
    """Bytes at rest with text-like tokens: all but log-probs and the journal of open steps."""
    make, before = _Samples("text"), (await client.stats()).used_bytes
    for start in range(0, groups, 50):
        for number in range(start, min(groups, start + 50)):
            await client.put_samples(make.group(length, number % 10, spread=0.5, prompt=number // 10))
    await client.forget_logprobs(1 << 30)
    stats = await client.stats()
    return {f"rest_{length}_bytes_a_token": (stats.used_bytes - before) / stats.tokens}


class _Samples:
    """Samples like those of a run: one prompt per group, a new one for every group unless it is passed."""

    def __init__(self, kind: str) -> None:
        self._rng = np.random.default_rng(0)
        self._kind = kind
        self._groups = 0

    def group(self, length: int, step: int, *, spread: float = 0.0, prompt: int | None = None) -> list[NewSample]:
        self._groups += 1
        number = self._groups if prompt is None else prompt
        name = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"  # spread over the key space as hashes are
        context = self._tokens(PROMPT_TOKENS)
        lengths = np.maximum(1, length * np.exp(spread * self._rng.standard_normal(GROUP))).astype(int).tolist()
        return [self._sample(SampleId(step, name, index), context, lengths[index]) for index in range(GROUP)]

    def _sample(self, sample: SampleId, context: NDArray[np.uint32], length: int) -> NewSample:
        versions = [(sample.step, length)]
        info = SampleInfo(
            id=sample, prompt_length=len(context), length=length, finish_reason="stop", versions=versions
        )
        logprobs = -self._rng.exponential(0.5, length).astype(np.float32)
        return NewSample(info, context, self._tokens(length), logprobs, self._rng.random(length) < ACCEPTED)

    def _tokens(self, size: int) -> NDArray[np.uint32]:
        if self._kind == "random":
            return self._rng.integers(0, VOCABULARY, size, np.uint32)
        return np.minimum(self._rng.zipf(1.25, size), VOCABULARY - 1).astype(np.uint32)


def _write_plainly(path: Path, size: int, syncs: int) -> float:
    """Seconds to write as many bytes with as many syncs."""
    chunk = np.random.default_rng(0).bytes(max(1, size // syncs))
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        began = time.perf_counter()
        for _ in range(syncs):
            os.write(descriptor, chunk)
            os.fdatasync(descriptor)
        return time.perf_counter() - began
    finally:
        os.close(descriptor)
        path.unlink()


@contextlib.asynccontextmanager
async def _store(**options: Any) -> AsyncIterator[_Bench]:
    """A store in a process of its own, in a folder that is removed afterwards, and its clients."""
    with tempfile.TemporaryDirectory(prefix="rhymed-bench-") as folder:
        net = {"store": f"ipc://{folder}/socket"}
        config = Config.model_validate({"run": {"folder": folder, "name": "bench"}, "store": options, "net": net})
        where = layout_of(config)
        with contextlib.ExitStack() as started:
            pid = started.enter_context(_process(config)).pid
            clients = [connect(where, f"bench-{number}") for number in range(CLIENTS)]
            for client in clients:
                started.callback(client.close)
            await clients[0].open_run("bench", "{}")
            yield _Bench(clients, Path(folder), psutil.Process(pid))


@contextlib.contextmanager
def _process(config: Config) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _SERVE, config.model_dump_json()])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
