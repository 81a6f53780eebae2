"""Background tasks whose errors are seen.

asyncio reports the error of a task that is not awaited only when the task is collected, and never that it ended with
a `CancelledError` that no caller requested: one from a future that other code cancelled. Another task
that waits for its result waits without a reason. So a task is either awaited where it is made, or made here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Cancelled(RuntimeError):
    """A task was not cancelled itself, but the future that it waited for was; its cause is the `CancelledError`."""


def watched(
    work: Coroutine[Any, Any, Result],
    failed: Callable[[BaseException], None] | None = None,
    keep: set[asyncio.Task[Any]] | None = None,
) -> asyncio.Task[Result]:
    """Run in the background. `failed` is called once with the error of a task that raises one, `Cancelled` included,
    but not if a caller cancels the task; None: the error is logged. `keep`: holds the task while it runs; the event
    loop itself has only a weak reference to it."""
    task = asyncio.get_running_loop().create_task(work)
    if keep is not None:
        keep.add(task)

    def ended(done: asyncio.Task[Any]) -> None:
        if keep is not None:
            keep.discard(done)
        if (error := error_of(done)) is None:
            return
        if failed is not None:
            failed(error)
        else:
            log.error("a background task failed: %s", getattr(work, "__qualname__", work), exc_info=error)

    task.add_done_callback(ended)
    return task


def error_of(done: asyncio.Task[Any]) -> BaseException | None:
    """The error of a task that has ended; None: it has a result, or a caller cancelled it."""
    try:
        return done.exception()
    except asyncio.CancelledError as error:
        if done.cancelling():
            return None
        cancelled = Cancelled(f"{done.get_name()}: the future that it waited for was cancelled")
        cancelled.__cause__ = error
        return cancelled
