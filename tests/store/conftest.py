"""A store for tests: real LMDB in a temporary folder, real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.store.stores import LocalStore


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    local = LocalStore(tmp_path / "store")
    yield local
    local.database.close()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.125}})


@pytest.fixture
def where(config: Config) -> RunLayout:
    return layout_of(config)


@pytest.fixture
async def service(config: Config, where: RunLayout) -> AsyncIterator[StoreService]:
    async with StoreService(config.store, where).running() as service:
        yield service


@pytest.fixture
async def client(service: StoreService, where: RunLayout) -> AsyncIterator[StoreClient]:
    client = StoreClient(where.store, "test")
    yield client
    client.close()
