from __future__ import annotations

import asyncio

import pytest

from rhymed.core.errors import DeadlineExceeded, PeerGone
from rhymed.core.service import retry as retrying
from rhymed.core.service.retry import Waits, retry


def test_the_longest_wait_is_reported_with_its_last_error() -> None:
    now = 100.0
    waits = Waits(lambda: now)
    first = waits.begin("reading prompts")
    now += 2
    second = waits.begin("the weights of version 3", "the file is gone")
    assert waits.longest == ""  # too short to be of interest
    now += 2
    assert waits.longest == "for 4 s: reading prompts"
    waits.failed(first, PeerGone("the store is closing"))
    assert waits.longest == "for 4 s: reading prompts (the store is closing)"
    waits.end(first)
    now += 2
    assert waits.longest == "for 4 s: the weights of version 3 (the file is gone)"
    waits.end(second)
    assert waits.longest == ""


async def test_whoever_retries_is_seen_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PATIENT_S", 0.0)
    monkeypatch.setattr(retrying.WAITS, "_open", {})  # not what a test before left behind
    seen: list[str] = []

    async def attempt() -> None:
        seen.append(retrying.WAITS.longest)
        raise PeerGone("away")

    with pytest.raises(DeadlineExceeded):
        await retry(attempt, "reading prompts", pause_s=0.001, patience_s=0.2)
    assert seen[0] == "for 0 s: reading prompts"
    assert seen[-1] == "for 0 s: reading prompts (away)"
    assert retrying.WAITS.longest == ""
    waiting = asyncio.create_task(retry(lambda: asyncio.sleep(60), "reading prompts"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert retrying.WAITS.longest == ""
