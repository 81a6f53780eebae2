"""Group commit: one thread writes; while it commits, the next operations collect and share the next transaction.

An operation is answered only after the transaction that holds it is committed. Knows nothing of what is written.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rhymed.core.errors import PeerGone
from rhymed_store.database.transactions import Operation

log = logging.getLogger(__name__)

GROUP_BYTES = 64 << 20  # of payload in one transaction: bounds how long its callers wait


class _Pending(NamedTuple):
    operation: Operation
    size: int
    done: asyncio.Future[None]


class Writer:
    """Created on the event loop; `commit` runs on the writer's own thread and returns the error of each operation."""

    def __init__(self, commit: Callable[[Sequence[Operation]], list[Exception | None]]) -> None:
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, operation: Operation, size: int = 0) -> None:
        """Returns when the operation is committed. Raises its error. `size`: bytes of payload, an estimate."""
        if self._closed:
            raise PeerGone("the store is closing")
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Pending(operation, size, done))
        await done

    def close(self) -> None:
        """Write what is queued, then end the thread. Blocks."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            group, more = self._collect(first)
            try:
                outcomes = self._commit([pending.operation for pending in group])
            except Exception as error:
                log.exception("a transaction failed")
                outcomes = [error] * len(group)
            self._loop.call_soon_threadsafe(self._settle, group, outcomes)
            if not more:
                return

    def _collect(self, first: _Pending) -> tuple[list[_Pending], bool]:
        """What is queued already, up to a limit; and whether more may come."""
        group, size = [first], first.size
        while size < GROUP_BYTES:
            try:
                pending = self._queue.get_nowait()
            except queue.Empty:
                break
            if pending is None:
                return group, False
            group.append(pending)
            size += pending.size
        return group, True

    def _settle(self, group: list[_Pending], outcomes: Sequence[Exception | None]) -> None:
        for pending, error in zip(group, outcomes, strict=True):
            if pending.done.done():
                continue  # its caller is gone
            if error is None:
                pending.done.set_result(None)
            else:
                pending.done.set_exception(error)
