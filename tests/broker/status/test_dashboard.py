"""The dashboard as the broker keeps it: real processes, killed and started again, and ports that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.show.dashboard import listen
from rhymed_broker.status.dashboard import Dashboard
from tests.broker.cluster import broker_process, changed


@pytest.fixture
def where(config: Config) -> RunLayout:
    found = layout_of(config)
    found.folder.mkdir(parents=True)
    found.config.write_text(config.model_dump_json())
    return found


def get(folder: Path, path: str) -> Any:
    address = listen.read(folder)
    assert address is not None
    with urllib.request.urlopen(f"{address.url}{path}", timeout=30) as answer:
        return json.load(answer)


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    started = time.monotonic()
    while True:
        with contextlib.suppress(OSError, AssertionError, psutil.Error):
            if found := true():
                return found
        assert time.monotonic() - started < seconds
        time.sleep(0.02)


def lives(folder: Path) -> Any:
    return get(folder, "api/run")["live"]


def test_it_comes_with_the_broker_and_comes_back(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RHYMED_NET__HTTP")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        config = changed(config, net={"http": f"127.0.0.1:{taken}"})
        folder = layout_of(config).folder
        with broker_process(config) as broker:
            until(lambda: lives(folder))
            first = listen.read(folder)
            assert first is not None
            assert first.port != taken
            assert get(folder, "api/news")["queues"]["run"] == "test"
            (page,) = psutil.Process(broker.pid).children()
            page.kill()
            until(lambda: psutil.Process(broker.pid).children() not in ([], [page]) and lives(folder))
            assert listen.read(folder) == first
            assert broker.poll() is None
            broker.send_signal(signal.SIGKILL)
            broker.wait()
        with broker_process(config) as broker:
            (page,) = until(lambda: psutil.Process(broker.pid).children())
            until(lambda: lives(folder))
            assert listen.read(folder) == first  # a page that is open finds it again
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(60) == 0
            until(lambda: not page.is_running())
            assert listen.read(folder) is None


async def test_one_that_cannot_be_is_a_warning(where: RunLayout, caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(60):
        await Dashboard("192.0.2.1:80", where, lambda: None).run()  # type: ignore[arg-type,return-value]
    assert "there is no dashboard: the dashboard cannot listen at" in caplog.text
    assert "the run continues without it" in caplog.text


async def test_without_an_address_or_a_folder_there_is_none(config: Config, where: RunLayout) -> None:
    async with asyncio.timeout(60):
        await Dashboard("", where, lambda: None).run()  # type: ignore[arg-type,return-value]
        os.remove(where.config)
        await Dashboard("127.0.0.1:0", where, lambda: None).run()  # type: ignore[arg-type,return-value]
    assert not (where.folder / listen.ADDRESS_FILE).exists()
