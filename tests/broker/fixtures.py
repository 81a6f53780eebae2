from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rhymed.config import Config
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from tests.broker.cluster import Cluster
from tests.broker.ledger.stories import Story


@pytest.fixture
def story() -> Story:
    return Story(Ledger())


@pytest.fixture
def pipelined() -> Story:
    return Story(Ledger(Rules(max_staleness=1)))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{number}", "answer": "1"}) + "\n" for number in range(6)))
    return Config.model_validate(
        {
            "run": {"name": "test", "folder": str(tmp_path / "runs")},
            "data": {"source": "jsonl", "path": str(data)},
            "rollout": {"prompts_per_step": 2, "group_size": 4, "engine": "trace"},
            "trainer": {"epochs": 1},
            "schedule": {"heartbeat_s": 0.1, "lost_after_s": 3.0},
            "store": {"map_gib": 0.1, "durability": "async"},
        }
    )


@pytest.fixture
async def cluster(config: Config) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        yield await Cluster(config, stack).open()
