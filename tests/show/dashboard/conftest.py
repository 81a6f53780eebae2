"""A run's folder with everything in it, and the dashboard's real server before it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from rhymed.core.config import Config
from rhymed.core.messages import Queues, SampleId
from rhymed.core.run.timeline import Event, Writer
from rhymed.core.wire.addresses import HttpAddress
from rhymed.show.dashboard.server import serving
from rhymed.show.dashboard.snapshots import LiveRun, never
from tests.records.history.folders import APPLES, two_epochs, write_store, write_tokenizer
from tests.show.dashboard.rows import NOW, row, span

ANY = HttpAddress("127.0.0.1", 0)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bare(tmp_path: Path, tokenizer: Path) -> Path:
    """As it is before anything happened: a configuration."""
    folder = tmp_path / "watched"
    folder.mkdir()
    config = {
        "run": {"name": "watched", "folder": str(tmp_path)},
        "model": {"path": str(tokenizer)},
        "trainer": {"steps": 4},
        "metrics": {"mlflow": "http://me:secret@there:5000"},
    }
    (folder / "config.json").write_text(Config.model_validate(config).model_dump_json())
    return folder


@pytest.fixture
def run(bare: Path) -> Path:
    """Four steps, two epochs of two prompts."""
    write_store(bare, two_epochs(), [SampleId(0, APPLES, 1)])
    with (bare / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(row(step)) + "\n" for step in range(4))
        file.write(json.dumps({"step": 2, "time": NOW, "val/held/acc/mean@1": 0.5}) + "\n")
    writer = Writer(bare)
    writer.write([Event(t=NOW, event="begun", step=0), *(span(NOW + at) for at in range(1, 6))])
    writer.close()
    return bare


Open = Callable[..., Any]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Open:
    """`async with serve(folder) as ask:`, then `await ask("/api/run")` returns the status and the answer."""

    monkeypatch.setattr("rhymed.show.dashboard.snapshots.FRESH_S", 0.04)

    @contextlib.asynccontextmanager
    async def opened(
        folder: Path, snapshot: Callable[[], Queues | None] | None = None, address: HttpAddress = ANY
    ) -> AsyncIterator[Any]:
        async def ask() -> Queues | None:
            return snapshot() if snapshot else None

        async with serving(folder, address, LiveRun(ask if snapshot else never)) as taken, ClientSession() as session:
            url = f"http://127.0.0.1:{taken.port}"

            async def get(path: str, **more: Any) -> tuple[int, Any]:
                async with session.get(url + path, **more) as response:
                    text = await response.text()
                    return response.status, json.loads(text) if response.content_type.endswith("json") else text

            get.url, get.session, get.port = url, session, taken.port  # type: ignore[attr-defined]
            yield get

    return opened
