"""All calls of an async reward function have one event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from rhymed_workers.reward.scorers.custom import _synchronous


async def answer(loops: list[Any]) -> int:
    loops.append(asyncio.get_running_loop())
    return 7


def test_its_sessions_stay_usable() -> None:
    loops = list[Any]()
    call = _synchronous(answer)
    assert [call(loops=loops) for _ in range(2)] == [7, 7]
    assert loops[0] is loops[1]
