from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.workers.peers import BAD, ROWS, RecordingBroker, RecordingTrainer


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"folder": str(tmp_path)},
            "rollout": {"engine": "trace", "max_prompt_length": 64, "max_response_length": 80, "max_concurrency": 8},
            "trace": {"mean_length": 20, "step_s": 0.002, "token_s": 0},
            "store": {"map_gib": 0.1},
        }
    )


@pytest.fixture
async def scene(
    config: Config, tmp_path: Path
) -> AsyncIterator[tuple[RunLayout, RecordingBroker, RecordingTrainer, StoreClient]]:
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        broker, trainer = RecordingBroker(where.broker), RecordingTrainer(where.weights, tmp_path / "weights")
        client = StoreClient(where.store, "broker")
        await client.put_prompts([*ROWS, BAD])
        yield where, broker, trainer, client
        client.close()
        broker.server.close()
        trainer.server.close()
