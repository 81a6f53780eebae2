from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from tests.broker.cluster import Cluster, small_run
from tests.broker.ledger.stories import Story


@pytest.fixture
def story() -> Story:
    return Story(Ledger())


@pytest.fixture
def pipelined() -> Story:
    return Story(Ledger(Rules(max_staleness=1)))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_run(tmp_path, schedule={"lost_after_s": 3.0})


@pytest.fixture
async def cluster(config: Config) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        yield await Cluster(config, stack).open()
