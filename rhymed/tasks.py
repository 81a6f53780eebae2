"""Background tasks whose errors are seen.

asyncio reports the error of a task that is not awaited only when the task is collected. Until then, another task that
waits for its result waits without a reason. So a task is either awaited, or made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def watched(
    work: Coroutine[Any, Any, Any],
    failed: Callable[[BaseException], None],
    keep: set[asyncio.Task[Any]] | None = None,
) -> asyncio.Task[Any]:
    """Run in the background. `failed` is called once with the error of a task that raises one, not of one that is
    cancelled. `keep`: holds the task while it runs; the event loop itself has only a weak reference to it."""
    task = asyncio.get_running_loop().create_task(work)
    if keep is not None:
        keep.add(task)

    def ended(done: asyncio.Task[Any]) -> None:
        if keep is not None:
            keep.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            failed(error)

    task.add_done_callback(ended)
    return task
