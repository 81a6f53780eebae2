"""What a rollout worker asks of an inference engine. Knows neither broker nor store, torch nor vLLM.

An engine takes tasks while others run (continuous batching), and weights while tasks run: then every running task
goes on under the new weights, and its output says which token is of which version.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rhymed.config import Config
from rhymed.messages import EVAL, Drafting, FinishReason, SampleId

if TYPE_CHECKING:
    from rhymed_store.client import StoredSample

NO_VERSION = -1
"""Weights that no trainer has published: nothing may be sampled from them."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `seed` belongs to one sample."""

    temperature: float
    top_p: float
    top_k: int  # 0: off
    min_p: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Task:
    """`carried`: response tokens that this sample made earlier, from its first one on, with other weights or
    elsewhere. An engine may use them as drafts; they never change what is sampled."""

    id: SampleId
    prompt: Sequence[int]  # token ids
    sampling: Sampling
    carried: Sequence[int] = ()


@dataclass(frozen=True)
class Output:
    """What became of a task; `finish_reason` "abort": it was cancelled, and this is what there was."""

    tokens: NDArray[np.uint32]
    logprobs: NDArray[np.float32]  # of each token, under the distribution it was sampled from
    finish_reason: FinishReason
    versions: list[tuple[int, int]]  # (policy version, how many tokens in a row), oldest first


class Told(NamedTuple):
    """What an engine knows about the drafts of a sample that has ended; None: not known."""

    drafting: Drafting | None = None
    yields: bytes | None = None  # tokens of each forward, see `rhymed.histospec.drafts.yields`


class Engine(Protocol):
    """Every method but `open` and `close` may raise `EngineError` when the engine has died; it stays dead."""

    @property
    def version(self) -> int:
        """Policy version of the weights; `NO_VERSION` before the first `load`."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Leaves no process behind; may be called at any time, also while `open` runs."""

    async def generate(self, task: Task) -> Output:
        """Ends when the task is finished or cancelled. Raises `DataError` for a task that cannot be done."""

    def cancel(self, id: SampleId) -> None:
        """Its `generate` ends soon with what there is. An unknown id is ignored."""

    async def load(self, version: int, path: Path) -> dict[str, float]:
        """Replace the weights by this safetensors file. Returns where the time went, in seconds."""

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        """A prompt's earlier responses, newest step first, to draft from. `tokens` are the prompt's."""

    async def drafting(self, ids: Sequence[SampleId]) -> list[Told]:
        """What drafting did for these samples, which ended a moment ago. Asked once for each."""

    def progress(self) -> dict[SampleId, int]:
        """Tokens generated so far of what is in the engine."""

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        """Tokens of samples in the engine, of each from its position on. Never fails; one that it does not have is
        left out."""

    def stats(self) -> dict[str, float]:
        """Metrics by the names of docs/metrics.md; rates are since the last call."""

    def seconds(self) -> Mapping[str, float]:
        """Busy seconds by activity (`rhymed.service.activities`) up to now. They only grow."""


def seed_of(run_seed: int, id: SampleId) -> int:
    """62 bits, a pure function of the run's seed and the sample: the same run draws the same noise again."""
    digest = hashlib.blake2b(f"{run_seed}/{id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def sampling_for(config: Config, id: SampleId) -> Sampling:
    rollout = config.rollout
    if id.step >= EVAL:
        wanted = config.eval
        return Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=0,
            min_p=0.0,
            max_tokens=wanted.max_response_length or rollout.max_response_length,
            seed=seed_of(config.run.seed, id),
        )
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_tokens=rollout.max_response_length,
        seed=seed_of(config.run.seed, id),
    )


class Rate:
    """Tokens per second between two looks at a growing total."""

    def __init__(self) -> None:
        self._total, self._at = 0, time.monotonic()

    def look(self, total: int) -> float:
        now = time.monotonic()
        rate = (total - self._total) / max(1e-6, now - self._at)
        self._total, self._at = total, now
        return max(0.0, rate)
