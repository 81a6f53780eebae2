"""Repeats an attempt while a peer is away. One loop for all processes; only patience and error types differ."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rhymed.core import errors

log = logging.getLogger(__name__)

PATIENCE_S = 600.0  # broker, store and trainer may restart, but not stay away; a killed store is back sooner
LONGEST_PAUSE_S = 10.0
FULL_S = 540.0  # a disk may be full for so long; less than `PATIENCE_S`: who waits for the store outlives it

TRANSIENT = (errors.DeadlineExceeded, errors.PeerGone, errors.Overloaded, errors.RemoteFailure, errors.StoreFull)
"""Errors of a worker's requests while its peers restart."""

STORE_AWAY = (errors.DeadlineExceeded, errors.PeerGone, errors.Overloaded, errors.StoreFull, OSError)
"""Errors of a store that will be back, and of a full disk; others are faults."""

PATIENT_S = 3.0  # a shorter wait is not reported

Attempt = Callable[[], Awaitable[Any]]
ErrorTypes = type[Exception] | tuple[type[Exception], ...]


class Waits:
    """What this process is waiting for, so that no wait is silent: see `Heartbeat.waits`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[object, tuple[float, str, str]] = {}  # token -> since when, for what, the last error

    def begin(self, what: str, error: object = "") -> object:
        """Returns a token for the other two."""
        token = object()
        self._open[token] = self._clock(), what, str(error)
        return token

    def failed(self, token: object, error: object) -> None:
        since, what, _ = self._open[token]
        self._open[token] = since, what, str(error)

    def end(self, token: object) -> None:
        self._open.pop(token, None)

    @property
    def longest(self) -> str:
        """The longest wait, in words; empty: there is none of more than `PATIENT_S`."""
        since, what, error = min(self._open.values(), default=(math.inf, "", ""))
        waited_s = self._clock() - since
        if waited_s < PATIENT_S:
            return ""
        return f"for {waited_s:.0f} s: {what}{f' ({error})' if error else ''}"


WAITS = Waits()
"""Of this process."""


async def retry(
    attempt: Attempt, what: str, *, on: ErrorTypes = TRANSIENT, pause_s: float = 0.5, patience_s: float = PATIENCE_S
) -> Any:
    """Repeat `attempt` until it succeeds; `what` names it in the log. Other errors than `on` pass through.

    The pauses grow up to `LONGEST_PAUSE_S`. Raises `DeadlineExceeded` with the last error after `patience_s`
    (`math.inf`: never).
    """
    started, last, waiting = time.monotonic(), None, WAITS.begin(what)
    try:
        async with asyncio.timeout(None if patience_s == float("inf") else patience_s):
            while True:
                try:
                    return await attempt()
                except on as error:
                    last = error
                    WAITS.failed(waiting, error)
                    log.warning("%s: %s; retrying in %.1f s", what, error, pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
    except TimeoutError:
        waited_s = time.monotonic() - started
        raise errors.DeadlineExceeded(f"{what}: gave up after {waited_s:.0f} s (last error: {last})") from None
    finally:
        WAITS.end(waiting)


async def retry_store(attempt: Attempt, what: str, patience_s: float = PATIENCE_S) -> Any:
    """`retry` for the broker's requests to the store. Raises `StoreError` after `patience_s`."""
    try:
        return await retry(attempt, what=f"store ({what})", on=STORE_AWAY, patience_s=patience_s)
    except errors.DeadlineExceeded as error:
        raise errors.StoreError(
            f"{error}; is the store running? restart it and resume the run: nothing is lost"
        ) from None
