"""Generates a sample to its end under weights that its step allows; tokens of older weights are verified.

Noise is a function of sample and position, so tokens that were generated under older weights, or by another worker,
mostly come out again, several per forward pass: they are handed to the engine as `Task.carried`. Invariant: an output
that leaves here has no token of weights older than the staleness contract allows. Knows neither broker nor messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import SampleId
from rhymed.core.steps import window
from rhymed_workers.engines.base import Engine, Output, Sampling, Task, turn_seed
from rhymed_workers.sessions.record import common


@dataclass(eq=False)
class ActiveSample:
    """A sample assigned to this worker. A sample that is assigned again after a cancel gets a new object."""

    id: SampleId
    assigned_at: float  # monotonic
    has_partial: bool = False  # the store has its first tokens
    cancelled: bool = False
    released: bool = False  # it goes to another worker
    parked: bool = False  # complete under old weights: it waits for newer ones and needs no slot
    interrupted: bool = False  # stopped because newer weights are about to be loaded; it continues under them
    prompt: list[int] | None = None
    prefix: list[int] | None = None  # the response so far, of a sample in turns; None: it is one response
    turn: int = 0  # the number of the turn that is written
    branches: bool = False  # what its program asks with is the key of every turn, of the first one too
    repeats: int = 0  # earlier turns with the same prompt and prefix
    spare: int = 0  # tokens that its prompt leaves to the response
    most: int | None = None  # tokens that the turn may have; None: as many as there is room for
    stop: tuple[str, ...] = ()  # strings that end the turn, in addition to the run's
    stored: bool = False  # the store has its turn: another one may be assigned before the broker has acknowledged it
    stale_output: Output | None = None  # generated under weights that are too old
    output: Output | None = None
    ahead: tuple[int, int] = (0, 0)  # tokens generated earlier; of these, kept
    saved: int = 0  # the first tokens of the current response that the store has too
    saved_at: float = 0.0

    @property
    def tokens(self) -> int:
        """Length of the complete response, or turn with what came before; 0 while there is none."""
        complete = self.output or self.stale_output
        return len(complete.tokens) + len(self.prefix or ()) if complete else 0


class Generation:
    """`read_partial` reads what another worker generated of a sample; `report_parked` reports that a sample needs no
    slot for now."""

    def __init__(
        self,
        engine: Engine,
        sampling: Callable[[SampleId], Sampling],
        max_staleness: int,
        read_partial: Callable[[SampleId], Awaitable[Sequence[int]]],
        report_parked: Callable[[SampleId], Awaitable[None]],
    ) -> None:
        self._engine, self._sampling, self._max_staleness = engine, sampling, max_staleness
        self._read_partial, self._report_parked = read_partial, report_parked
        self._changed = asyncio.Condition()  # weights were loaded, or a sample was cancelled or released

    async def run(self, sample: ActiveSample) -> Output | None:
        """None: it was cancelled. Finish reason "abort": it was released, or the engine aborted it."""
        assert sample.prompt is not None, "the caller has rendered it"
        oldest, sampling = self._oldest(sample), self._sampling(sample.id)
        if sample.prefix is not None:
            sampling = _of_turn(sample, sampling)
        carried = await self._read_partial(sample.id) if sample.has_partial else ()
        while not (sample.cancelled or sample.released):
            sample.saved = 0  # the store's tokens may be of other weights
            output = await self._engine.generate(Task(sample.id, sample.prompt, sampling, carried, sample.prefix))
            kept = common(carried, output.tokens)
            sample.ahead = (sample.ahead[0] + len(carried), sample.ahead[1] + kept)
            stale = bool(output.versions) and output.versions[0][0] < oldest
            stopped = (sample.interrupted or sample.released) and output.finish_reason == "abort"
            sample.interrupted = False
            if not (stale or stopped):
                return None if sample.cancelled else output
            if len(output.tokens) > kept or not len(carried):  # else it was stopped during verification
                carried = output.tokens.tolist()
            sample.stale_output = output
            await self._wait_for_weights(sample, oldest)
            sample.stale_output = None
        return None if sample.cancelled else _unfinished(carried)

    def unsaved(self, samples: Iterable[ActiveSample]) -> dict[ActiveSample, NDArray[np.uint32]]:
        """The tokens after the first `saved` of each unfinished sample that has any."""
        unfinished = [sample for sample in samples if sample.output is None and not sample.cancelled]
        starts = {sample.id: sample.saved for sample in unfinished if sample.stale_output is None}
        running = self._engine.written(starts)
        parts = {
            sample: running.get(sample.id)
            if sample.stale_output is None
            else sample.stale_output.tokens[sample.saved :]
            for sample in unfinished
        }
        return {sample: part for sample, part in parts.items() if part is not None and len(part)}

    def interrupt(self, samples: Iterable[ActiveSample]) -> None:
        """Stop the samples that run ahead of the loaded weights: newer weights are about to be loaded."""
        for sample in samples:
            started = sample.prompt is not None and sample.stale_output is None
            if started and self._oldest(sample) > self._engine.version:
                sample.interrupted = True
                self._engine.cancel(sample.id)

    async def notify(self) -> None:
        """Weights were loaded, or a sample was cancelled or released: waiting samples check again."""
        async with self._changed:
            self._changed.notify_all()

    def _oldest(self, sample: ActiveSample) -> int:
        return window(sample.id.step, self._max_staleness)[0]

    async def _wait_for_weights(self, sample: ActiveSample, oldest: int) -> None:
        """Wait for weights that the sample's step allows. A complete response gives up its slot."""
        if self._engine.version >= oldest or sample.released or sample.cancelled:
            return
        if sample.stale_output is not None and sample.stale_output.finish_reason != "abort":
            sample.parked = True
            await self._report_parked(sample.id)
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._engine.version >= oldest or sample.cancelled or sample.released
            )
        sample.parked = False


def _of_turn(sample: ActiveSample, sampling: Sampling) -> Sampling:
    prompt, prefix, seed = sample.prompt or (), sample.prefix or (), sampling.seed
    left = sampling.max_tokens + sample.spare - len(prefix)
    if sample.most is not None:
        left = min(left, sample.most)
    if prefix or sample.branches:
        seed = turn_seed(seed, prompt, prefix, sample.repeats)
    return replace(sampling, max_tokens=left, seed=seed, stop=(*sampling.stop, *sample.stop))


def _unfinished(tokens: Sequence[int]) -> Output:
    """For another worker, which needs only the tokens."""
    return Output(np.asarray(tokens, np.uint32), np.zeros(len(tokens), np.float32), "abort", [])
