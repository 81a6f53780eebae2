"""Notices an engine that has work and makes no progress: it neither answers nor dies, so its worker has to end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rhymed.errors import EngineError

LOOKS = 20  # in the patience; a process that was stopped for a while does not count the time


async def watch(state: Callable[[], object], patience_s: float) -> None:
    """`state` changes with every token; None: there is nothing to do. Raises `EngineError` after `patience_s`."""
    seen: object = None
    silent = 0
    while True:
        await asyncio.sleep(patience_s / LOOKS)
        now = state()
        silent = silent + 1 if now is not None and now == seen else 0
        seen = now
        if silent >= LOOKS:
            raise EngineError(
                f"the engine has work, and has made no token for {patience_s:g} s (rollout.stall_s): it is ended"
            )
