"""What the endpoint of programs adds to a call: until the call is stored, and from the stored turn to the answer.

Store and clients are processes of their own, over real sockets. The policy is emulated: it writes a turn at once, so
that its time does not count. What the store takes to make a turn durable is told apart: a call needs the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.scale.cluster import process_of
from rhymed.core.config import Config
from rhymed.core.errors import RunFailed
from rhymed.core.messages import SampleId, Turn
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.inputs.rows import prompt_id
from rhymed_store.client import StoreClient
from rhymed_store.sessions import NewTurn, put_turns
from rhymed_workers.sessions.endpoint import Endpoint
from rhymed_workers.sessions.session import Limits, Session
from rhymed_workers.sessions.speech import load_speech

ROW = {"prompt": "What is in this folder?"}
TURN = 64  # tokens
PATIENCE_S = 300.0
CLIENT = "benchmarks.agents.client"


class Times(NamedTuple):
    """Of one call: when it was stored, and when its turn was."""

    stored: float
    written: float


@dataclass
class Asking:
    """In place of a program, whose calls come from the clients' process."""

    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def words(self) -> str:
        return ""

    async def kill(self) -> None:
        self.ended.cancel()


def run(sessions: int, calls: int) -> dict[str, float]:
    """`calls`: of each session, one after another, with half a second between them."""
    with tempfile.TemporaryDirectory(prefix="rhymed-endpoint-") as folder:
        config = _config(Path(folder))
        where = layout_of(config)
        where.folder.mkdir(parents=True)
        where.config.write_text(config.model_dump_json())
        with process_of("store", where):
            return asyncio.run(_run(config, where, sessions, calls))


def _config(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "endpoint", "folder": str(folder)},
            "data": {"source": "jsonl", "path": str(folder / "rows.jsonl")},
            "environment": {"command": "unused"},
            "rollout": {"engine": "trace", "max_prompt_length": 1 << 16, "max_response_length": 1 << 16},
            "store": {"map_gib": 1.0},
        }
    )


async def _run(config: Config, where: RunLayout, sessions: int, calls: int) -> dict[str, float]:
    speech = load_speech(config)
    store = StoreClient(where.store, "bench")
    limits, named = Limits(1 << 17, 10 * calls, PATIENCE_S, "the client"), dict[str, Session]()
    try:
        await store.put_prompts([ROW], deadline_s=60.0)
        async with Endpoint("127.0.0.1", 0, "policy", named) as endpoint:
            for number in range(sessions):
                session = named[str(number)] = Session(SampleId(0, prompt_id(ROW), number), store, speech, limits)
                session.program = Asking()  # type: ignore[assignment]
            targets = {name: (endpoint.url(name), session.token) for name, session in named.items()}
            used = time.process_time()
            async with _clients() as process:
                served = [asyncio.create_task(_serve(session, store, calls)) for session in named.values()]
                async with asyncio.timeout(PATIENCE_S):
                    output, _ = await process.communicate(json.dumps([targets, calls]).encode())
                    kept = await asyncio.gather(*served)
            used = time.process_time() - used
    finally:
        store.close()
        speech.close()
    if process.returncode:
        raise RunFailed("the clients of the endpoint failed")
    asked = json.loads(output)
    costs = _costs(dict(zip(named, kept, strict=True)), asked)
    return costs | {"cpu_ms": 1000 * used / costs["calls"]}


@contextlib.asynccontextmanager
async def _clients() -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", CLIENT, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _serve(session: Session, store: StoreClient, calls: int) -> list[Times]:
    """As worker and policy."""
    times, random = [], np.random.default_rng(session.id.index)
    for number in range(calls):
        await session.act()  # delivers the turn before
        stored = time.monotonic()
        tokens = random.integers(97, 123, TURN).astype(np.uint32)
        turn = Turn(length=TURN, finish_reason="stop", versions=[(0, TURN)])
        await put_turns(store, [NewTurn(session.id, number, turn, tokens, np.zeros(TURN, np.float32))])
        times.append(Times(stored, time.monotonic()))
    await session._read()
    return times


def _costs(kept: dict[str, list[Times]], asked: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    pairs = [(own, call) for name in kept for own, call in zip(kept[name], asked[name], strict=True)]
    found = {
        "request_to_stored_ms": [stored - begun for (stored, _), (begun, _) in pairs],
        "turn_to_answer_ms": [ended - written for (_, written), (_, ended) in pairs],
        "store_ms": [written - stored for (stored, written), _ in pairs],
        "both_ms": [stored - begun + ended - written for (stored, written), (begun, ended) in pairs],
    }
    shares = {"median": 50, "p99": 99}
    return {"calls": float(len(pairs))} | {
        f"{name}_{label}": 1000 * float(np.percentile(values, percent))
        for name, values in found.items()
        for label, percent in shares.items()
    }
