"""Notices work that makes no progress: it neither ends nor fails, so whoever waits for it has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rhymed.errors import RhymedError

LOOKS = 20  # in the patience; a process that was stopped for a while does not count the time


async def watch(state: Callable[[], object], patience_s: float, error: RhymedError) -> None:
    """`state` changes with every bit of progress; None: there is nothing to do. Raises `error` after `patience_s`."""
    seen: object = None
    silent = 0
    while True:
        await asyncio.sleep(patience_s / LOOKS)
        now = state()
        silent = silent + 1 if now is not None and now == seen else 0
        seen = now
        if silent >= LOOKS:
            raise error
