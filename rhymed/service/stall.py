"""Detects work that neither progresses nor fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rhymed.errors import RhymedError

CHECKS = 20  # within the patience; a process that was stopped meanwhile does not count the time


async def watch(state: Callable[[], object], patience_s: float, error: RhymedError) -> None:
    """Raises `error` when `state` has not changed for `patience_s`; None: there is no work."""
    seen: object = None
    silent = 0
    while True:
        await asyncio.sleep(patience_s / CHECKS)
        now = state()
        silent = silent + 1 if now is not None and now == seen else 0
        seen = now
        if silent >= CHECKS:
            raise error
