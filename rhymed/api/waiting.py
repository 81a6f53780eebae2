"""Blocking work next to an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """The result of `work`. When this is cancelled, `work` is interrupted, and its end is awaited."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        await asyncio.wait([task])
        raise
