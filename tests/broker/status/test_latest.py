from __future__ import annotations

import asyncio

import pytest

from rhymed.core.errors import FilesLost
from rhymed.core.messages import StoreStats
from rhymed.core.service.service import LagMeter
from rhymed_broker.forecast import Forecast
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from rhymed_broker.status import snapshot
from rhymed_broker.status.snapshot import Latest


class Shrinking:
    """A store that comes back with other files."""

    def __init__(self, *samples: int) -> None:
        self._samples = list(samples)

    async def stats(self, *, deadline_s: float) -> StoreStats:
        counts = {name: 0 for name in ("tokens", "prompts", "used_bytes", "map_bytes", "commits")}
        return StoreStats(samples=self._samples.pop(0), commit_ms=0.0, **counts)


async def test_a_store_that_has_lost_samples_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "STORE_POLL_S", 0.0)
    made = Latest("run", Ledger(Rules(), None, Forecast(8)), LagMeter())
    async with asyncio.timeout(60):
        with pytest.raises(FilesLost, match="the store has 1 sample and had 1,200: it came back with other files"):
            await made.watch(Shrinking(0, 1200, 1200, 1))
