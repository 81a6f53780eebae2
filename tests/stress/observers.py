"""`python -m tests.stress.observers`: what watching costs a run, with many emulated workers at a real broker.

Turns without observers, with dashboard pages and with `rhymed top` alternate on the same run, so that changes of the
machine's speed affect all of them. A page does what a browser does: it asks for news every second and for its lists
every 2 s. The server is the one that the broker starts. `top` is the real command in a pseudo-terminal. Measured are
the lag of the broker's event loop, its CPU time, scored samples per second, and the CPU time of `top`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

import aiohttp
import psutil

from benchmarks.actors import Trainer
from benchmarks.scale.cluster import (
    PATIENCE_S,
    cluster,
    config_of,
    cpu_seconds,
    emulated_workers,
    raise_priority,
    snapshot_of,
    until_connected,
)
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed.show.dashboard import listen
from rhymed_store.client import StoreClient
from tests.stress import command
from tests.stress.terminal import watching

ASKED = ("lengths", "prompts?sort=reward", "run", "store")
EVERY_S = 2.0
SETTLE_S = 2.0


class Measurement(NamedTuple):
    """The run during one turn."""

    lag_ms: float  # 99th percentile of the broker's event loop over the last 20 s: longer than a quick turn
    cpu: float  # cores that the broker used
    samples_per_s: float  # scored


def run(quick: bool) -> dict[str, float]:
    """Measures and prints a table. Returns the numbers; units are in the names."""
    workers, pages, seconds, rounds = (64, 5, 5.0, 1) if quick else (256, 5, 21.0, 4)
    turns = asyncio.run(_turns(workers, pages, seconds, rounds))
    for name, rows in (("without", turns.without), (f"{pages} pages", turns.pages), ("top", turns.top)):
        for row in rows:
            print(f"{name:<8} lag {row.lag_ms:6.1f} ms   broker {row.cpu:5.1%}   {row.samples_per_s:7,.0f} samples/s")
    results = {"watch/page_bytes_per_s": turns.read / (pages * seconds * rounds)}
    results |= _ratios("watch/", f"{pages} pages", turns.without, turns.pages)
    results |= _ratios("watch/top_", "top", turns.without, turns.top)
    print(f"one page reads {results['watch/page_bytes_per_s'] / 1000:,.0f} kB/s")
    results |= {"watch/top_cpu": mean(turns.top_cpu), "watch/top_mib": turns.top_mib}
    low, high = min(turns.top_cpu), max(turns.top_cpu)
    print(f"top uses {mean(turns.top_cpu):.2%} of a core ({low:.2%} to {high:.2%}), {turns.top_mib:.0f} MiB")
    return results


def _ratios(key: str, name: str, without: list[Measurement], observed: list[Measurement]) -> dict[str, float]:
    ratios_by_name = {}
    for what in Measurement._fields:
        ratios = [getattr(b, what) / getattr(a, what) for a, b in zip(without, observed, strict=True)]
        ratios_by_name[f"{key}{what}_ratio"] = mean(ratios)
        print(f"{what:<14} {name} to without: {mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return ratios_by_name


@dataclass
class Turns:
    """The measurements, one entry per round."""

    without: list[Measurement] = field(default_factory=list)
    pages: list[Measurement] = field(default_factory=list)
    top: list[Measurement] = field(default_factory=list)
    top_cpu: list[float] = field(default_factory=list)  # cores that `rhymed top` took
    top_mib: float = 0.0  # its memory, the last time
    read: int = 0  # bytes, by all pages


async def _turns(workers: int, pages: int, seconds: float, rounds: int) -> Turns:
    tree = config_of(prompts_per_step=2 * workers, group_size=16, steps=1000).model_dump()
    tree["net"]["http"] = "127.0.0.1:0"
    turns = Turns()
    async with cluster(Config.model_validate(tree)) as (where, broker), _working(where, workers):
        raise_priority(broker)
        for _ in range(rounds):
            turns.without.append(await _measure(where, broker, seconds))
            count = [0]
            async with _pages(where, pages, count):
                turns.pages.append(await _measure(where, broker, seconds))
            turns.read += count[0]
            async with watching(where.broker) as (terminal, top):
                drawn = terminal.drawn
                await _top(turns, top, where, broker, seconds)
                assert terminal.drawn > drawn, "top has drawn meanwhile"
    return turns


async def _top(turns: Turns, top: psutil.Process, where: RunLayout, broker: psutil.Process, seconds: float) -> None:
    await asyncio.sleep(SETTLE_S)  # the cost of its start is not counted
    cpu_s, started = cpu_seconds(top), time.monotonic()
    turns.top.append(await _measure(where, broker, seconds))
    turns.top_cpu.append((cpu_seconds(top) - cpu_s) / (time.monotonic() - started))
    turns.top_mib = top.memory_info().rss / 2**20


@contextlib.asynccontextmanager
async def _working(where: RunLayout, workers: int) -> AsyncIterator[None]:
    with emulated_workers(where, workers, processes=2):
        store = StoreClient(where.store, "actors")
        try:
            async with Trainer(where.broker, store, "trainer", work_s=0.1):
                await until_connected(where, workers + 1)
                async with asyncio.timeout(PATIENCE_S):
                    while (await snapshot_of(where)).counts.get("trained", 0) == 0:
                        await asyncio.sleep(0.2)
                yield
        finally:
            store.close()


async def _measure(where: RunLayout, broker: psutil.Process, seconds: float) -> Measurement:
    await asyncio.sleep(SETTLE_S)
    first, cpu_s, started = await snapshot_of(where), cpu_seconds(broker), time.monotonic()
    await asyncio.sleep(seconds)
    last, cpu_s, wall_s = await snapshot_of(where), cpu_seconds(broker) - cpu_s, time.monotonic() - started
    scored = last.counts.get("scored", 0) - first.counts.get("scored", 0)
    return Measurement(last.lag_ms, cpu_s / wall_s, scored / wall_s)


@contextlib.asynccontextmanager
async def _pages(where: RunLayout, count: int, read: list[int]) -> AsyncIterator[None]:
    address = listen.read(where.folder)
    assert address is not None, "the broker's dashboard has started"
    async with aiohttp.ClientSession(address.url) as session:
        asked = ((("news?serial=1",), 1.0), (ASKED, EVERY_S))
        work = [_ask(session, read, *one) for one in asked for _ in range(count)]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()  # raises the error of a page that failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, read: list[int], names: Sequence[str], every_s: float) -> None:
    while True:
        for name in names:
            async with session.get(f"api/{name}") as answer:
                answer.raise_for_status()
                read[0] += len(await answer.read())
        await asyncio.sleep(every_s)


def main() -> int:
    return command.call(run, command.parser("tests.stress.observers", "measure what watching costs a run"))


if __name__ == "__main__":
    sys.exit(main())
