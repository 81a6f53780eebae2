"""The engine without a model: synthetic responses, in real time, by a cost curve.

A response is a pure function of the sample's id, so every process generates the same at any time. A forward pass of b
running samples takes `step_s + token_s * b`; prefill is free. The carried tokens of a task that agree with its
response are verified in its first pass, which takes `verify_s` longer for each of them; there are no other drafts.
Waiting tasks enter in order of arrival as slots become free. With `trace.tools`, turns call tools. Needs
neither torch nor a tokenizer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Rollout, Trace
from rhymed.core.errors import EngineError
from rhymed.core.messages import FinishReason, SampleId
from rhymed.core.service.stopwatch import Stopwatch
from rhymed.core.tasks import watched
from rhymed.histospec.drafts.yields import Yields
from rhymed_workers.engines.base import NO_VERSION, DraftReport, Output, Task, Throughput

if TYPE_CHECKING:
    from rhymed_store.client import StoredSample

LOAD_S = 0.02
MEAN_SURPRISE = 0.8  # nats a token, about what a small model has at temperature 1
REMEMBERED = 4096  # finished samples whose yields `drafting` has not returned


class TraceBook:
    """Maps samples to responses."""

    def __init__(self, trace: Trace, rollout: Rollout) -> None:
        self._trace = trace
        self._limit = rollout.max_response_length

    def response(
        self, id: SampleId, turn: int | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.uint32], NDArray[np.float32], FinishReason]:
        """Tokens, log-probs, finish reason. `turn`: the key of a turn, of a sample in turns. `limit`: tokens."""
        tokens = self._tokens(id, turn)
        limit = self._limit if limit is None else limit
        reason: FinishReason = "stop" if len(tokens) <= limit else "length"
        tokens = tokens[:limit]
        logprobs = -_noise("logprobs", str(id), *_part(turn)).exponential(MEAN_SURPRISE, len(tokens))
        return tokens, logprobs.astype(np.float32), reason

    def _tokens(self, id: SampleId, turn: int | None) -> NDArray[np.uint32]:
        """Log-normal lengths: each prompt has a typical length, and its samples scatter around it."""
        trace, noise = self._trace, _noise("sample", str(id), *_part(turn))
        level = _noise("prompt", id.prompt).standard_normal()
        spread = trace.prompt_sigma * level + trace.sample_sigma * noise.standard_normal()
        length = max(1, min(self._limit + 1, round(trace.mean_length * math.exp(spread))))
        words = noise.integers(0, trace.vocabulary, length, dtype=np.uint32)
        return np.concatenate([words, *self._calls(f"{id}/{turn or 0:x}", noise)]) if trace.tools else words

    def _calls(self, key: str, noise: np.random.Generator) -> Iterator[NDArray[np.uint32]]:
        """One call, two, or none: then it is the sample's last turn. A text's bytes are its tokens."""
        count = 0 if noise.random() < 1 / self._trace.turns else int(noise.integers(1, 3))
        for number in range(count):
            name = self._trace.tools[noise.integers(len(self._trace.tools))]
            call = json.dumps({"name": name, "arguments": {"key": f"{key}/{number}"}})
            yield np.frombuffer(f"<tool_call>{call}</tool_call>".encode(), np.uint8).astype(np.uint32)


@dataclass
class _Running:
    task: Task
    tokens: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    reason: FinishReason
    future: asyncio.Future[Output]
    done: int = 0
    versions: list[tuple[int, int]] = field(default_factory=list)
    yields: Yields = field(default_factory=Yields)

    def kept(self, version: int, keep: float) -> int:
        """How many of the carried tokens hold under these weights; 0 after the first pass."""
        if self.done or not len(self.task.carried):
            return 0
        carried = np.asarray(self.task.carried)[: len(self.tokens)]
        same = carried == self.tokens[: len(carried)]
        same &= _noise("keep", str(self.task.id), str(version)).random(len(carried)) < keep
        return len(carried) if same.all() else int(same.argmin())

    def advance(self, version: int, kept: int) -> int:
        """Add the kept tokens and one more, up to the end. Returns how many were added."""
        count = min(kept + 1, len(self.tokens) - self.done)
        self.yields.add(kept + 1, self.done + kept + 1)  # past the end too, as a real engine does
        self.done += count
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + count)
        else:
            self.versions.append((version, count))
        return count

    def finish(self, reason: FinishReason) -> None:
        if not self.future.done():
            output = Output(self.tokens[: self.done], self.logprobs[: self.done], reason, self.versions)
            self.future.set_result(output)


class TraceEngine:
    """Follows a `TraceBook` with `rollout.max_concurrency` slots."""

    def __init__(self, trace: Trace, rollout: Rollout) -> None:
        self._trace, self._rollout = trace, rollout
        self._version = NO_VERSION
        self._waiting: deque[_Running] = deque()
        self._running: dict[SampleId, _Running] = {}
        self._work = asyncio.Event()
        self._loading = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()
        self._generated = 0
        self._yields: dict[SampleId, bytes] = {}  # of finished samples
        self._throughput = Throughput()
        self._seconds = Stopwatch("idle")
        self._loop: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None

    @property
    def version(self) -> int:
        return self._version

    async def open(self) -> None:
        self._book = TraceBook(self._trace, self._rollout)
        self._loop = watched(self._steps(), self._fail)

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    def _fail(self, error: BaseException) -> None:
        """No pass is made any more, so none may be waited for."""
        self._failure = EngineError(f"the trace engine stopped: {type(error).__name__}: {error}")
        for entry in [*self._waiting, *self._running.values()]:
            if not entry.future.done():
                entry.future.set_exception(self._failure)

    async def generate(self, task: Task) -> Output:
        if self._failure is not None:
            raise self._failure
        whole = task.prefix is None
        parts = self._book.response(task.id, *(() if whole else (task.sampling.seed, task.sampling.max_tokens)))
        entry = _Running(task, *parts, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._work.set()
        try:
            return await entry.future
        finally:  # also if the caller is cancelled
            self._forget(entry)

    def cancel(self, id: SampleId) -> None:
        for entry in [*self._waiting, *self._running.values()]:
            if entry.task.id == id:
                self._forget(entry)
                entry.finish("abort")

    async def load(self, version: int, path: Path) -> dict[str, float]:
        async with self._loading:
            await asyncio.sleep(LOAD_S)
            self._version = version
        self._awake.set()
        return {"load": LOAD_S}

    async def sleep(self) -> dict[str, float]:
        """No pass is made until the next `load`."""
        async with self._loading:
            self._awake.clear()
        return {"sleep": 0.0}

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        """This engine does not draft from history."""

    async def drafting(self, ids: Sequence[SampleId]) -> list[DraftReport]:
        return [DraftReport(yields=self._yields.pop(id, None)) for id in ids]

    def progress(self) -> dict[SampleId, int]:
        return {entry.task.id: 0 for entry in self._waiting} | {id: entry.done for id, entry in self._running.items()}

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        running = {id: entry for id in starts if (entry := self._running.get(id)) is not None}
        return {id: entry.tokens[starts[id] : entry.done] for id, entry in running.items()}

    def stats(self) -> dict[str, float]:
        return {
            "rollout/tokens_per_s": self._throughput.update(self._generated),
            "rollout/running": float(len(self._running)),
            "rollout/waiting": float(len(self._waiting)),
        }

    def seconds(self) -> Mapping[str, float]:
        """A pass that verifies carried tokens is `verify`, every other pass `decode`."""
        return {name: seconds for name, seconds in self._seconds.read().items() if name != "idle"}

    def _forget(self, entry: _Running) -> None:
        if self._running.get(entry.task.id) is entry:
            del self._running[entry.task.id]
        elif entry in self._waiting:
            self._waiting.remove(entry)

    async def _steps(self) -> None:
        """Forward passes, each due a fixed time after the one before, so that late wake-ups do not add up."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._awake.is_set() or not (self._running or self._waiting):
                self._work.clear()
                self._seconds.enter("idle")
                await self._work.wait() if self._awake.is_set() else await self._awake.wait()
                due = clock()
                continue
            while self._waiting and len(self._running) < self._rollout.max_concurrency:
                entry = self._waiting.popleft()
                self._running[entry.task.id] = entry
            due = max(due, clock() - 1.0)
            due += self._pass_s()
            await asyncio.sleep(max(0.0, due - clock()))
            async with self._loading:
                if self._awake.is_set():
                    self._advance()

    def _pass_s(self) -> float:
        trace, version = self._trace, self._version
        kept = sum(entry.kept(version, trace.keep) for entry in self._running.values())
        self._seconds.enter("verify" if kept else "decode")
        return trace.step_s + trace.token_s * len(self._running) + trace.verify_s * kept

    def _advance(self) -> None:
        version, keep = self._version, self._trace.keep
        for entry in list(self._running.values()):
            self._generated += entry.advance(version, entry.kept(version, keep))
            if entry.done == len(entry.tokens):
                self._forget(entry)
                self._yields[entry.task.id] = bytes(entry.yields)
                entry.finish(entry.reason)
        while len(self._yields) > REMEMBERED:
            del self._yields[next(iter(self._yields))]


def _part(turn: int | None) -> list[str]:
    """Of a key."""
    return [] if turn is None else [str(turn)]


def _noise(*key: str) -> np.random.Generator:
    digest = hashlib.blake2b("\0".join(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
