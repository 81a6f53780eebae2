"""The endpoint of programs and strangers: silent connections, malformed requests, and too many of one session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from rhymed.core import http
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import layout_of
from rhymed.core.service.retry import WAITS
from rhymed.core.wire.limits import LogThrottle
from rhymed_store.client import StoreClient
from rhymed_workers.environment.worker import Acting, EnvironmentWorker
from rhymed_workers.sessions import endpoint
from rhymed_workers.sessions.endpoint import Endpoint
from rhymed_workers.sessions.programs import Programs
from rhymed_workers.sessions.session import Limits, Session
from rhymed_workers.sessions.speech import load_speech
from tests.workers.sessions.policies import ID, Loop, config_of

FILES = 96
STRANGERS = FILES // 4
SILENT = b""
HALF = b"POST /sessions/0-a-0/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
MALFORMED = b"GET /\x1b[31m HTTP/x\r\n\r\n"


@contextlib.asynccontextmanager
async def strangers(port: int, count: int, sent: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    opened = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(sent)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def closed(readers: list[asyncio.StreamReader], count: int) -> None:
    """Returns when so many of them are closed by the server."""
    reading = {asyncio.create_task(reader.read()) for reader in readers}
    try:
        while len(reading) > len(readers) - count:
            _, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def asked(url: str, key: str = "wrong") -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as client, client.post(f"{url}/chat/completions", headers=headers) as answer:
        return answer.status


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (FILES, FILES))


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("sent", [SILENT, HALF])
async def test_strangers_do_not_take_the_workers_files(sent: bytes) -> None:
    async with (
        Endpoint("127.0.0.1", 0, "policy", {}) as served,
        strangers(served.port, 3 * STRANGERS, sent) as readers,
        asyncio.timeout(120.0),
    ):
        await closed(readers, 2 * STRANGERS)
        assert await asked(served.url("0-a-0")) == 401


@pytest.mark.parametrize("sent", [SILENT, HALF])
async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    async with (
        Endpoint("127.0.0.1", 0, "policy", {}) as served,
        strangers(served.port, 4, sent) as readers,
        asyncio.timeout(120.0),
    ):
        await closed(readers, 4)


async def test_malformed_requests_cost_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    for each in logging.getLogger("rhymed.core.http").filters:
        each._throttle = LogThrottle()  # type: ignore[union-attr]
    caplog.set_level(logging.INFO)
    async with Endpoint("127.0.0.1", 0, "policy", {}) as served, asyncio.timeout(120.0):
        for _ in range(4):
            async with strangers(served.port, 25, MALFORMED) as readers:
                await closed(readers, 25)
    assert 0 < len(caplog.records) <= 40
    assert not any(record.exc_info for record in caplog.records)


async def test_one_session_has_few_requests_at_once(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "AT_ONCE", 2)
    monkeypatch.setattr(endpoint, "MOST_BYTES", 1 << 12)
    speech = load_speech(config_of(tmp_path, ""))
    session = Session(SampleId(0, ID.prompt, 0), store, speech, Limits(1 << 17, 8, 60.0, "the client"))
    async with Endpoint("127.0.0.1", 0, "policy", {"mine": session}) as served, asyncio.timeout(120.0):
        url, headers = served.url("mine"), {"Authorization": f"Bearer {session.token}"}
        async with aiohttp.ClientSession(headers=headers) as client:

            async def ask(text: str) -> int:
                body = {"model": "any", "messages": [{"role": "user", "content": text}]}
                async with client.post(f"{url}/chat/completions", json=body) as answer:
                    assert (await answer.json())["error"]["type"] == "invalid_request_error"
                    return answer.status

            assert await ask("long" * 2000) == 413
            waiting = [asyncio.create_task(ask(str(number))) for number in range(2)]
            while len(session.calls) < 2:
                await asyncio.sleep(0.001)
            assert await ask("more") == 429
            await session.close()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    speech.close()


async def test_large_bodies_are_few_at_once_and_the_others_wait(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 100 << 10
    monkeypatch.setattr(endpoint, "MOST_HELD_BYTES", 3 * size)
    speech = load_speech(config_of(tmp_path, ""))
    session = Session(SampleId(0, ID.prompt, 0), store, speech, Limits(1 << 20, 8, 60.0, "the client"))
    async with Endpoint("127.0.0.1", 0, "policy", {"mine": session}) as served, asyncio.timeout(120.0):
        url, headers = served.url("mine"), {"Authorization": f"Bearer {session.token}"}
        async with aiohttp.ClientSession(headers=headers) as client:

            async def ask(text: str) -> int:
                body = {"model": "any", "messages": [{"role": "user", "content": text}]}
                async with client.post(f"{url}/chat/completions", json=body) as answer:
                    return answer.status

            large = [asyncio.create_task(ask(f"{number}{'x' * size}")) for number in range(4)]
            while len(session.calls) < 2:
                await asyncio.sleep(0.001)
            small = asyncio.create_task(ask("small"))
            while len(session.calls) < 3:
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in large)
            assert size < served._held <= 3 * size
            await session.close()
            await asyncio.wait(large, return_when=asyncio.FIRST_COMPLETED)
            for task in (*large, small):
                task.cancel()
            await asyncio.gather(*large, small, return_exceptions=True)
        while served._held:
            await asyncio.sleep(0.001)
    speech.close()


async def test_a_worker_without_files_rests_and_blames_no_sample(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rhymed_workers.environment.worker.REST_S", 0.05)
    monkeypatch.setattr("rhymed.core.service.retry.PATIENT_S", 0.0)
    monkeypatch.setattr(WAITS, "_open", {})  # a task that another test left may wait for longer
    config = config_of(tmp_path, "ask([say('a')])")
    worker = EnvironmentWorker(config, layout_of(config), "environment-0")
    async with Programs(config, store) as programs:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # no other file can be opened
        try:
            acting = asyncio.create_task(Acting(worker, programs, 1)._through_losses(ID))
            while not acting.done() and "Too many open files" not in WAITS.longest:
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await acting
        assert "Too many open files" not in WAITS.longest
        assert (await Loop(store).finish(programs)) is not None
    await worker.close()
