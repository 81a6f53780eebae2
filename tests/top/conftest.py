from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rhymed.config import Config
from tests.broker.cluster import Cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A real broker and store; a step is two groups of two."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{number}", "answer": "1"}) + "\n" for number in range(6)))
    config = Config.model_validate(
        {
            "run": {"name": "test", "folder": str(tmp_path / "runs")},
            "data": {"source": "jsonl", "path": str(data)},
            "rollout": {"prompts_per_step": 2, "group_size": 2, "engine": "trace"},
            "trainer": {"epochs": 1},
            "schedule": {"heartbeat_s": 0.1},
            "store": {"map_gib": 0.1, "durability": "async"},
        }
    )
    async with contextlib.AsyncExitStack() as stack:
        yield await Cluster(config, stack).open()
