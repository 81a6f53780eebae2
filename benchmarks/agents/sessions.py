"""Many samples in turns at once, in real processes over real sockets; only the engine and the tools are emulated."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agents.measure import Turn, costs, idle
from benchmarks.agents.task import config
from benchmarks.scale.cluster import cluster, snapshot_of
from rhymed.core.config import Config
from rhymed.core.errors import RhymedError, RunFailed
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import RunLayout
from rhymed_store.client import StoreClient, StoredSample

ROLES = ("environment", "reward", "trainer")
WORKERS = 2  # rollout workers
PATIENCE_S = 600.0


def run(sessions: int, slots: int, steps: int, turns: int, **trace: float) -> dict[str, Any]:
    """`sessions`: at once. `slots`: of all workers."""
    with tempfile.TemporaryDirectory(prefix="rhymed-agents-") as folder:
        made = config(Path(folder), sessions, slots // WORKERS, steps, turns, **trace)
        return asyncio.run(_run(made, slots))


async def _run(config: Config, slots: int) -> dict[str, Any]:
    async with cluster(config) as (where, _):
        with _workers(where) as trainer:
            await _joined(where)
            began = time.monotonic()
            await asyncio.to_thread(_wait, trainer, where)
            seconds = time.monotonic() - began
            samples = await _turns(where)
    every = [turn for sample in samples for turn in sample]
    found = idle(every, slots)
    return {
        "samples": len(samples),
        "turns": len(every),
        "seconds": seconds,
        "idle_share": found.share,
        "empty_share": found.empty,
        "waiting_s": found.waiting_s,
        "slots": slots,
        "running": sum(turn.freed - turn.taken for turn in every) / found.total_s / slots,
        **costs(samples),
    }


@contextlib.contextmanager
def _workers(where: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    """The trainer, which ends with the run."""
    names = [f"rollout-{number}" for number in range(WORKERS)]
    own = [["-m", "benchmarks.agents.worker", str(where.config), name] for name in names]
    others = [["-m", "rhymed", "worker", "--role", role, str(where.config)] for role in ROLES]
    children = [subprocess.Popen([sys.executable, *command]) for command in [*others, *own]]
    try:
        yield children[ROLES.index("trainer")]
    finally:
        for child in children:
            child.terminate()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
            child.kill()
            child.wait()


async def _joined(where: RunLayout) -> None:
    """Waits until all workers are there."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(RhymedError):  # the broker may be starting
                    if len((await snapshot_of(where)).workers) >= WORKERS + len(ROLES):
                        return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise RunFailed(f"not all workers had joined after {PATIENCE_S:g} s") from None


def _wait(trainer: subprocess.Popen[bytes], where: RunLayout) -> None:
    try:
        status = trainer.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        status = None
    if status != 0:
        raise RunFailed(f"the run did not end in {PATIENCE_S:g} s, or failed ({status}); logs: {where.folder}/logs")


async def _turns(where: RunLayout) -> list[list[Turn]]:
    """Of each sample, in their order."""
    slots = _slots(where)
    with contextlib.closing(StoreClient(where.store, "bench")) as store:
        found = []
        for id, events in slots.items():
            try:
                (sample,) = await store.get_samples([id], prompt_tokens=True)
            except RhymedError:
                continue  # of a step that was not finished
            found.append(_of(sample, events))
    return found


def _slots(where: RunLayout) -> dict[SampleId, dict[int, dict[str, float]]]:
    """Sample -> tokens before the turn -> what -> time."""
    found: dict[SampleId, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for file in where.folder.glob("*.slots"):
        for line in file.read_text().splitlines():
            what, name, before, at = line.split()
            step, prompt, index = name.split("/")
            found[SampleId(int(step), prompt, int(index))][int(before)][what] = float(at)
    return found


def _of(sample: StoredSample, events: dict[int, dict[str, float]]) -> list[Turn]:
    assert sample.prompt_tokens is not None, "it was read with its prompt"
    turns, returned, at = [], _times(sample.prompt_tokens)[0], 0
    runs = [*sample.info.turns, 0][: 2 * sample.info.turn_count]
    for wrote, answer in zip(runs[::2], runs[1::2], strict=True):
        turn = Turn(ready=returned, **events[at])
        at += wrote + answer
        if answer:
            turn.called, returned = _times(sample.tokens[at - answer : at])
        turns.append(turn)
    return turns


def _times(tokens: np.ndarray[Any, Any]) -> list[float]:
    return [float(word) for word in bytes(tokens.tolist()).decode().split()]
