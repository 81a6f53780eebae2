"""The event loop of an async reward function ends with it, wherever that is noticed."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from rhymed_workers.reward.scorers.custom import _synchronous


async def answer(loops: list[Any]) -> int:
    loops.append(asyncio.get_running_loop())
    return 7


@pytest.mark.parametrize("inside", [False, True])
def test_it_is_closed_also_while_another_loop_runs(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raised, loops = list[Any](), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    calls = [_synchronous(answer)]
    assert [calls[0](loops=loops) for _ in range(2)] == [7, 7]
    assert loops[0] is loops[1]

    async def drop() -> None:
        calls.clear()
        gc.collect()

    if inside:
        asyncio.run(drop())
    else:
        calls.clear()
        gc.collect()
    assert loops[0].is_closed()
    assert not raised
