"""What a rollout worker asks of an inference engine. Knows neither broker nor store, torch nor vLLM.

An engine accepts tasks while others run (continuous batching), and weights while tasks run: every running task then
continues under the new weights, and its output has the version of each token.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Eval, Rollout
from rhymed.core.messages import Drafting, FinishReason, SampleId
from rhymed.core.steps import is_evaluation
from rhymed.inputs.rows import Row

if TYPE_CHECKING:
    from rhymed_store.client import StoredSample

ReadRows = Callable[[Sequence[str]], Awaitable[list[Row]]]
"""The rows of these prompts, in their order."""

NO_VERSION = -1
"""Of weights that no trainer has published: nothing may be sampled from them."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Every sample has its own `seed`."""

    temperature: float
    top_p: float
    top_k: int  # 0: off
    min_p: float
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()  # strings: the token that completes one is the last

    @property
    def cuts(self) -> bool:
        """Whether tokens are drawn from some of all only."""
        return bool(self.temperature and (self.top_p < 1 or self.top_k or self.min_p))


@dataclass(frozen=True)
class Task:
    """`carried`: the first tokens of the output, generated earlier with other weights or by another worker. An engine
    may use them as drafts, which never changes what is sampled. `prefix`: of a sample in turns, what was
    written before: the output continues it."""

    id: SampleId
    prompt: Sequence[int]  # token ids
    sampling: Sampling
    carried: Sequence[int] = ()
    prefix: Sequence[int] | None = None  # None: the sample is one response


@dataclass(frozen=True)
class Output:
    """The result of a task. Finish reason "abort": it was cancelled, and these are its tokens so far."""

    tokens: NDArray[np.uint32]
    logprobs: NDArray[np.float32]  # of each token, under the distribution it was sampled from
    finish_reason: FinishReason
    versions: list[tuple[int, int]]  # (policy version, how many tokens in a row), oldest first
    floors: NDArray[np.float32] | None = None  # see NewSample; None: not known, or each was drawn from all tokens


def shortened(output: Output, length: int) -> Output:
    """That output, ended after `length` tokens."""
    versions, left = [], length
    for version, count in output.versions:
        if left > 0:
            versions.append((version, min(count, left)))
        left -= count
    floors = None if output.floors is None else output.floors[:length]
    return Output(output.tokens[:length], output.logprobs[:length], "stop", versions, floors)


class DraftReport(NamedTuple):
    """How drafts did in a finished sample; None: not known."""

    drafting: Drafting | None = None
    yields: bytes | None = None  # tokens of each forward, see `rhymed.histospec.drafts.yields`


class Engine(Protocol):
    """Every method but `open` and `close` may raise `EngineError` if the engine has died. It does not recover."""

    @property
    def version(self) -> int:
        """Policy version of the weights; `NO_VERSION` before the first `load`."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Leaves no process behind. May be called at any time, also while `open` runs."""

    async def generate(self, task: Task) -> Output:
        """Returns when the task is finished or cancelled. Raises `DataError` for a task that the engine cannot do."""

    def cancel(self, id: SampleId) -> None:
        """Its `generate` returns soon, with the tokens so far. An unknown id is ignored."""

    async def load(self, version: int, path: Path) -> dict[str, float]:
        """Replace the weights by this safetensors file, and wake a sleeping engine. Returns each phase's seconds."""

    async def sleep(self) -> dict[str, float]:
        """Free the memory of weights and KV cache, as far as the engine can. Running tasks wait, and continue after
        the next `load`. Returns the seconds of each phase."""

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        """A prompt's earlier responses to draft from, newest step first. `tokens`: the prompt's."""

    async def drafting(self, ids: Sequence[SampleId]) -> list[DraftReport]:
        """For samples that have just finished. To be called once per sample."""

    def progress(self) -> dict[SampleId, int]:
        """Number of tokens generated so far, for each sample in the engine."""

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        """Tokens of samples in the engine, each from its given position. Never fails; other samples are left out."""

    def stats(self) -> dict[str, float]:
        """Metrics, named as in docs/metrics.md. Rates are since the last call."""

    def seconds(self) -> Mapping[str, float]:
        """Busy seconds by activity (`rhymed.core.service.stopwatch`) up to now; never decreasing."""


def seed_of(run_seed: int, id: SampleId) -> int:
    """62 bits, a pure function of the run's seed and the sample: a repeated run draws the same noise."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}/{id}".encode(), digest_size=8).digest(), "little") >> 2


def turn_seed(seed: int, prompt: Sequence[int], prefix: Sequence[int], repeats: int = 0) -> int:
    """Of a turn: 62 bits, a pure function of the sample's seed, of the exact tokens before the turn, and of how many
    earlier turns of the sample had the same. So branches share no noise, whatever the order of their turns."""
    tokens = np.asarray([*prompt, *prefix], "<u4").tobytes()
    salt = repeats.to_bytes(8, "little")
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + tokens, digest_size=8, salt=salt).digest()
    return int.from_bytes(digest, "little") >> 2


def sampling_for(rollout: Rollout, evaluation: Eval, run_seed: int, id: SampleId) -> Sampling:
    seed = seed_of(run_seed, id)
    if is_evaluation(id.step):
        return Sampling(
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            top_k=0,
            min_p=0.0,
            max_tokens=evaluation.max_response_length or rollout.max_response_length,
            seed=seed,
            stop=tuple(rollout.stop),
        )
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_tokens=rollout.max_response_length,
        seed=seed,
        stop=tuple(rollout.stop),
    )


class Throughput:
    """Tokens per second, from a growing total."""

    def __init__(self) -> None:
        self._total, self._at = 0, time.monotonic()

    def update(self, total: int) -> float:
        """Rate since the last call."""
        now = time.monotonic()
        rate = (total - self._total) / max(1e-6, now - self._at)
        self._total, self._at = total, now
        return max(0.0, rate)
