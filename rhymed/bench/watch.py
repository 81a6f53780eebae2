"""What open dashboards cost a run: many emulated workers at a real broker, with and without pages, in turns.

A page is what a browser does: it listens to the events, and asks again every 2 s for what its lists show. The server
is the broker's own, a process beside it. What counts is how late the broker's event loop is, its processor time, and
how many samples are scored a second; all of it on the same run, so that a change of the machine's mood hits both.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import mean
from typing import NamedTuple

import aiohttp
import psutil

from rhymed.bench.actors import Trainer
from rhymed.bench.broker import PATIENCE_S, ask, cluster, config_of, crowd, prefer, spent_s, until_connected
from rhymed.config import Config
from rhymed.places import Places
from rhymed.view import door
from rhymed_store.client import StoreClient

ASKED = ("queues", "lengths", "prompts?sort=reward", "run", "store")
EVERY_S = 2.0
SETTLE_S = 2.0


class Look(NamedTuple):
    """One turn."""

    lag_ms: float  # 99th percentile of the broker's event loop, over the last 20 s: longer than a quick turn
    cpu: float  # cores that the broker took
    samples_per_s: float  # scored


def run(quick: bool) -> dict[str, float]:
    """Measure, print a table, return the numbers; units are in the names."""
    workers, pages, seconds, rounds = (64, 5, 5.0, 1) if quick else (256, 5, 21.0, 4)
    without, beside, read = asyncio.run(_turns(workers, pages, seconds, rounds))
    for name, looks in (("without", without), (f"{pages} pages", beside)):
        for one in looks:
            print(f"{name:<8} lag {one.lag_ms:6.1f} ms   broker {one.cpu:5.1%}   {one.samples_per_s:7,.0f} samples/s")
    results = {"watch/page_bytes_per_s": read / (pages * seconds * rounds)}
    for field in Look._fields:
        ratios = [getattr(b, field) / getattr(a, field) for a, b in zip(without, beside, strict=True)]
        results |= {f"watch/{field}_ratio": mean(ratios)}
        print(f"{field:<14} with to without: {mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"a page reads {results['watch/page_bytes_per_s'] / 1000:,.0f} kB/s")
    return results


async def _turns(workers: int, pages: int, seconds: float, rounds: int) -> tuple[list[Look], list[Look], int]:
    """Looks without and with pages, and bytes that the pages have read."""
    tree = config_of(prompts_per_step=2 * workers, group_size=16, steps=1000).model_dump()
    tree["net"]["http"] = "127.0.0.1:0"
    without, beside, read = list[Look](), list[Look](), 0
    async with cluster(Config.model_validate(tree)) as (where, broker), _working(where, workers):
        prefer(broker)
        for _ in range(rounds):
            without.append(await _look(where, broker, seconds))
            count = [0]
            async with _pages(where, pages, count):
                beside.append(await _look(where, broker, seconds))
            read += count[0]
    return without, beside, read


@contextlib.asynccontextmanager
async def _working(where: Places, workers: int) -> AsyncIterator[None]:
    with crowd(where, workers, processes=2):
        store = StoreClient(where.store, "actors")
        try:
            async with Trainer(where.broker, store, "trainer", work_s=0.1):
                await until_connected(where, workers + 1)
                async with asyncio.timeout(PATIENCE_S):
                    while (await ask(where)).counts.get("trained", 0) == 0:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.2)
                yield
        finally:
            store.close()


async def _look(where: Places, broker: psutil.Process, seconds: float) -> Look:
    await asyncio.sleep(SETTLE_S)
    first, cpu_s, started = await ask(where), spent_s(broker), time.monotonic()
    await asyncio.sleep(seconds)
    last, cpu_s, wall_s = await ask(where), spent_s(broker) - cpu_s, time.monotonic() - started
    scored = last.counts.get("scored", 0) - first.counts.get("scored", 0)
    return Look(last.lag_ms, cpu_s / wall_s, scored / wall_s)


@contextlib.asynccontextmanager
async def _pages(where: Places, count: int, read: list[int]) -> AsyncIterator[None]:
    address = door.read(where.folder)
    assert address is not None, "the broker's dashboard has started"
    async with aiohttp.ClientSession(address.url) as session:
        work = [one(session, read) for one in (_listen, _poll) for _ in range(count)]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()  # a page that failed is no page
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(session: aiohttp.ClientSession, read: list[int]) -> None:
    async with session.get("events", timeout=aiohttp.ClientTimeout(total=None)) as answer:
        async for part in answer.content.iter_any():
            read[0] += len(part)


async def _poll(session: aiohttp.ClientSession, read: list[int]) -> None:
    while True:
        for name in ASKED:
            async with session.get(f"api/{name}") as answer:
                answer.raise_for_status()
                read[0] += len(await answer.read())
        await asyncio.sleep(EVERY_S)
