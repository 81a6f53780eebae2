"""A store for sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.workers.sessions.policies import ROW


@pytest.fixture
async def store(config: Config) -> AsyncIterator[StoreClient]:
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        await client.put_prompts([ROW])
        yield client
        client.close()
