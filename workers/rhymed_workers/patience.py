"""How long a worker goes on without its peers: broker, store and trainer may restart, but not stay away for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rhymed import errors
from rhymed.service import retry

PATIENCE_S = 600.0  # without an answer; then the worker ends with an error that says what it waited for
TRANSIENT = (errors.DeadlineExceeded, errors.PeerGone, errors.Overloaded, errors.RemoteFailure, errors.StoreFull)


async def patiently(
    attempt: Callable[[], Awaitable[Any]],
    what: str,
    *,
    on: type[Exception] | tuple[type[Exception], ...] = TRANSIENT,
    pause_s: float = 0.5,
) -> Any:
    """Try again while a peer is away, at most `PATIENCE_S`; other errors pass."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await retry(attempt, what=what, on=on, pause_s=pause_s)
    except TimeoutError:
        raise errors.DeadlineExceeded(f"{what}: given up after {PATIENCE_S:g} s") from None
