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
from types import TracebackType
from typing import Generic, TypeVar

from rhymed_broker.slices import Slices

Item = TypeVar("Item")
Result = TypeVar("Result")

TURN_S = 0.005  # of slices in one turn of the event loop
BATCH = 64  # orders in one turn: each becomes a message, and its answer a wake-up


class Turns:
    """`async with turns:` alone with the ledger. Not to be nested."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Turns:
        await self._lock.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    async def run(self, slices: Slices[Result]) -> Result:
        """Inside of `async with`. A short operation takes one turn."""
        is_long, until = False, time.monotonic() + TURN_S
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: Result = end.value
                return result
            if time.monotonic() >= until:
                if not is_long:
                    gc.collect(0)  # else the newest garbage would be kept, too
                    is_long = True
                gc.freeze()  # what a long operation makes lives long: collections need not look at it
                await asyncio.sleep(0)
                until = time.monotonic() + TURN_S


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

    @property
    def is_empty(self) -> bool:
        return not self._items

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _next(self) -> None:
        self._later = None
        for _ in range(min(BATCH, len(self._items))):
            self._hand_on(self._items.popleft())
        if self._items:
            self._later = asyncio.get_running_loop().call_soon(self._next)
