"""Who uses the ledger, and for how long at a time: the event loop stays responsive while a large step opens.

An operation of the ledger that takes long goes on in slices, over several turns of the event loop. Whoever else needs
the ledger meanwhile waits, in the order of arrival. So for the ledger each operation is still one indivisible event,
and what it decides does not depend on where the slices end.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from rhymed_broker.slices import Slices, whole

Item = TypeVar("Item")
Result = TypeVar("Result")

TURN_S = 0.005  # of slices in one turn of the event loop
BATCH = 64  # orders in one turn: each becomes a message, and its answer a wake-up
LONG_TURNS = 4  # an operation of more turns makes so much that collections of garbage would block the event loop
THAW = 64  # such operations, after which one collection looks at everything: else circular garbage would pile up


class Turns(asyncio.Lock):
    """`async with turns:` alone with the ledger. Not to be nested."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen = 0  # long operations since the last thaw

    async def run(self, slices: Slices[Result]) -> Result:
        """Inside of `async with`. A short operation takes one turn."""
        count, until = 0, time.monotonic() + TURN_S
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: Result = end.value
                return result
            if time.monotonic() >= until:
                count += 1
                self._freeze(count)
                await self._pause(slices)
                until = time.monotonic() + TURN_S

    async def _pause(self, slices: Slices[Result]) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            whole(slices)  # or the ledger would be left in the middle of a change
            raise

    def _freeze(self, turns: int) -> None:
        """What a long operation makes lives long: collections of garbage need not look at it."""
        if turns == LONG_TURNS:
            self._frozen += 1
            if is_thaw := self._frozen % THAW == 0:
                gc.unfreeze()
            gc.collect(2 if is_thaw else 0)  # the newest garbage would be frozen, too
        if turns >= LONG_TURNS:
            gc.freeze()


class Queue(Generic[Item]):
    """Hands items on in their order, a batch in each turn of the event loop; the first batch at once."""

    def __init__(self, hand_on: Callable[[Item], object]) -> None:
        self._hand_on = hand_on
        self._items: deque[Item] = deque()
        self._later: asyncio.Handle | None = None

    def put(self, items: list[Item]) -> None:
        self._items.extend(items)
        if self._later is None:
            self._next()

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _next(self) -> None:
        self._later = None
        for _ in range(min(BATCH, len(self._items))):
            self._hand_on(self._items.popleft())
        if self._items:
            self._later = asyncio.get_running_loop().call_soon(self._next)
