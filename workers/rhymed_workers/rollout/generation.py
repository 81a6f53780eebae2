"""Has a sample written to its end under weights that its step allows; what was written before is verified.

Noise is a function of sample and position, so tokens that were written under older weights, or by another worker,
come out again almost all, many a step: they are handed to the engine as `Task.carried`. Invariant: an output that
leaves here has no token of weights older than the staleness contract allows. Knows neither broker nor messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhymed.config import Config
from rhymed.messages import SampleId
from rhymed.staleness import window
from rhymed_workers.engines.base import Engine, Output, Task, sampling_for

Begun = Callable[[SampleId], Awaitable[Sequence[int]]]


@dataclass(eq=False)
class Hand:
    """A sample in hand. Taken again after a cancel it is another one."""

    id: SampleId
    since: float
    begun: bool = False  # the store has its beginning
    cancelled: bool = False
    released: bool = False  # it goes to another worker
    parked: bool = False  # written ahead to its end: it waits for newer weights, without a slot
    set_back: bool = False  # stopped, to go on under weights that are about to come
    prompt: list[int] | None = None
    written: Output | None = None  # under weights that are too old
    output: Output | None = None
    ahead: tuple[int, int] = (0, 0)  # tokens that were written before; of these, kept
    saved: int = 0  # tokens, of those that it has now, that the store has as well
    saved_at: float = 0.0

    @property
    def tokens(self) -> int:
        """Of what is whole, so far; 0: nothing is."""
        whole = self.output or self.written
        return len(whole.tokens) if whole else 0


class Writing:
    """`begun` reads what another worker wrote of a sample; `parked` tells that one needs no slot for a while."""

    def __init__(
        self, config: Config, engine: Engine, begun: Begun, parked: Callable[[SampleId], Awaitable[None]]
    ) -> None:
        self._config, self._engine = config, engine
        self._begun, self._parked = begun, parked
        self._news = asyncio.Condition()  # newer weights, or somebody's wait is over

    async def write(self, hand: Hand) -> Output | None:
        """None: it was cancelled. "abort": the engine did that, or it was released; then only the tokens count."""
        assert hand.prompt is not None, "the caller has rendered it"
        oldest, sampling = self._oldest(hand), sampling_for(self._config, hand.id)
        carried = await self._begun(hand.id) if hand.begun else ()
        while not (hand.cancelled or hand.released):
            hand.saved = 0  # what the store has may be of other weights
            output = await self._engine.generate(Task(hand.id, hand.prompt, sampling, carried))
            kept = _common(carried, output.tokens)
            hand.ahead = (hand.ahead[0] + len(carried), hand.ahead[1] + kept)
            stale = bool(output.versions) and output.versions[0][0] < oldest
            stopped = (hand.set_back or hand.released) and output.finish_reason == "abort"
            hand.set_back = False
            if not (stale or stopped):
                return None if hand.cancelled else output
            if len(output.tokens) > kept or not len(carried):  # else it was stopped while it was being verified
                carried = output.tokens.tolist()
            hand.written = output
            await self._wait(hand, oldest)
            hand.written = None
        return None if hand.cancelled else _unfinished(carried)

    def unsaved(self, hands: Iterable[Hand]) -> dict[Hand, NDArray[np.uint32]]:
        """Of unfinished samples the tokens behind the first `hand.saved`, where there are some."""
        open_ = [hand for hand in hands if hand.output is None and not hand.cancelled]
        running = {hand.id: hand.saved for hand in open_ if hand.written is None}
        found = self._engine.written(running)
        parts = {
            hand: found.get(hand.id) if hand.written is None else hand.written.tokens[hand.saved :] for hand in open_
        }
        return {hand: part for hand, part in parts.items() if part is not None and len(part)}

    def set_back(self, hands: Iterable[Hand]) -> None:
        """Newer weights are about to come: what runs ahead of its weights stops here."""
        for hand in hands:
            if hand.prompt is not None and hand.written is None and self._oldest(hand) > self._engine.version:
                hand.set_back = True
                self._engine.cancel(hand.id)

    async def stir(self) -> None:
        """Who waits looks again: weights are loaded, or a hand was cancelled or released."""
        async with self._news:
            self._news.notify_all()

    def _oldest(self, hand: Hand) -> int:
        return window(hand.id.step, self._config.schedule.max_staleness)[0]

    async def _wait(self, hand: Hand, oldest: int) -> None:
        """For weights that its step allows; without a slot, when it is written to its end."""
        if self._engine.version >= oldest or hand.released or hand.cancelled:
            return
        if hand.written is not None and hand.written.finish_reason != "abort":
            hand.parked = True
            await self._parked(hand.id)
        async with self._news:
            await self._news.wait_for(lambda: self._engine.version >= oldest or hand.cancelled or hand.released)
        hand.parked = False


def _unfinished(tokens: Sequence[int]) -> Output:
    """What goes to another worker: it needs nothing but the tokens."""
    return Output(np.asarray(tokens, np.uint32), np.zeros(len(tokens), np.float32), "abort", [])


def _common(first: Sequence[int], second: NDArray[np.uint32]) -> int:
    """Tokens until they differ."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:size]) != np.asarray(second[:size]))
    return int(differ[0]) if len(differ) else size
