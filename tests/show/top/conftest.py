from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.cluster import Cluster, small_run


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A real broker and store; a step is two groups of two."""
    config = small_run(tmp_path, rollout={"group_size": 2})
    async with contextlib.AsyncExitStack() as stack:
        yield await Cluster(config, stack).open()
