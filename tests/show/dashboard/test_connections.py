"""Connections of strangers: who gives way, how long one may be silent, and what the log says of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rhymed.core import http
from rhymed.core.http import NAME, Connections, Places, network_of, quiet_log
from rhymed.core.wire.addresses import HttpAddress
from rhymed.core.wire.limits import LogThrottle
from rhymed.show.dashboard.auth import TOKEN_VARIABLE
from rhymed.show.dashboard.server import published

WAIT_S = 60
EVERYWHERE = HttpAddress("0.0.0.0", 0)
TOKEN = "t" * 32
OWNER = {"headers": {"Authorization": f"Bearer {TOKEN}"}}


def test_the_network_with_the_most_strangers_gives_way() -> None:
    rooms = Places(strangers=4, near=3)
    first, _ = rooms.enter("a")
    more = [rooms.enter("a")[0] for _ in range(2)]
    assert rooms.enter("a")[1] is first  # each network has a limit of its own
    assert rooms.enter("b")[1] is None
    assert rooms.enter("c")[1] is more[0]
    assert len(rooms) == 4


def test_who_was_allowed_never_gives_way_to_strangers() -> None:
    rooms = Places(strangers=4, near=4)
    owner, _ = rooms.enter("a")
    assert rooms.allow(owner) is None
    left = [rooms.enter(network)[1] for network in "aaaabbbbcd" * 10]
    assert owner not in left
    assert len(rooms) == 5


def test_of_too_many_allowed_ones_an_idle_one_gives_way() -> None:
    rooms = Places(known=3)
    first, second, third, fourth, fifth = (rooms.enter("a")[0] for _ in range(5))
    for place in (first, second, third):
        assert rooms.allow(place) is None
    second.is_busy = False
    assert rooms.allow(fourth) is second
    assert rooms.allow(fifth) is first  # all are busy: the one that asked longest ago
    rooms.leave(fifth)
    assert len(rooms) == 2


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a/socket", "a/socket"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert network_of(host) == network


@contextlib.asynccontextmanager
async def crowd(port: int, count: int, sent: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections that sent this and nothing more."""
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(sent)
            readers.append(reader)
        yield readers


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


@pytest.mark.parametrize(
    "sent", [b"", b"GET /api/run HTTP/1.1\r\nHost: loc", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]
)
async def test_strangers_never_lock_the_owner_out(
    run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    monkeypatch.setattr("rhymed.core.http.Places", lambda: Places(strangers=24, near=12))
    async with serve(run, address=EVERYWHERE) as ask:
        assert (await ask("/api/run", **OWNER))[0] == 200  # its connection stays open
        async with crowd(ask.port, 60, sent) as readers:
            await asyncio.gather(*(closed(reader) for reader in readers[:40]))
            assert (await ask("/api/run", **OWNER))[0] == 200
            async with ask.session.get(ask.url + "/health", headers={"Connection": "close"}) as fresh:
                assert fresh.status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /api/run HTTP/1.1\r\nHost: loc", b"G"])
async def test_who_does_not_ask_is_closed(
    run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    async with serve(run) as ask, crowd(ask.port, 3, sent) as readers:
        await asyncio.gather(*(closed(reader) for reader in readers))
        assert (await ask("/api/run"))[0] == 200


async def test_who_does_not_take_its_answer_is_closed(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(http, "UNREAD_S", 0.2)
    monkeypatch.setattr("rhymed.show.dashboard.server.Connections", lambda: made.append(Connections()) or made[0])
    async with serve(run) as ask:
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            silent.connect(("127.0.0.1", ask.port))
            silent.setblocking(False)
            many = b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(silent, many))
            async with asyncio.timeout(WAIT_S):
                while not len(made[0]):
                    await asyncio.sleep(0.01)
                while len(made[0]):
                    await asyncio.sleep(0.01)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


BODY = b"x" * (8 << 20)


async def large(request: web.Request) -> web.StreamResponse:
    return web.Response(body=BODY)


@contextlib.asynccontextmanager
async def asked(handler: Any) -> AsyncIterator[socket.socket]:
    """A connection with a small buffer that has asked for what `handler` answers."""
    application = web.Application()
    application.router.add_get("/", handler)
    async with published(application, HttpAddress("127.0.0.1", 0)) as address, asyncio.timeout(WAIT_S):
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            slow.connect(("127.0.0.1", address.port))
            slow.setblocking(False)
            request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(slow, request)
            yield slow


async def test_a_slow_client_gets_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "UNREAD_S", 0.7)
    async with asked(large) as slow:
        taken = 0
        while part := await asyncio.get_running_loop().sock_recv(slow, 1 << 16):
            taken += len(part)
            await asyncio.sleep(0.016)
    assert taken > len(BODY)


async def test_who_was_refused_keeps_no_connection(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    request = b"GET /api/news HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serve(run, address=EVERYWHERE) as ask, crowd(ask.port, 3, request) as readers:
        await asyncio.gather(*(closed(reader) for reader in readers))


async def test_a_body_is_not_waited_for(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = b"GET /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n{"
    async with serve(run) as ask, crowd(ask.port, 1, request) as readers:
        began = time.monotonic()
        await closed(readers[0])
        assert time.monotonic() - began < http.IDLE_S / 2


async def test_malformed_requests_are_few_lines(run: Path, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    quiet_log().filters[0]._throttle = LogThrottle()  # type: ignore[union-attr]
    caplog.set_level(logging.DEBUG)
    async with serve(run) as ask, crowd(ask.port, 50, b"\x1b[31m\x00nonsense\r\n\r\n") as readers:
        await asyncio.gather(*(closed(reader) for reader in readers))
        lines = [record for record in caplog.records if record.name in (NAME, "aiohttp.server")]
    assert 0 < len(lines) <= LogThrottle.lines
    for line in lines:
        assert line.getMessage().startswith("a malformed request")
        assert line.getMessage().isprintable()
        assert line.exc_info is None
        assert len(line.getMessage()) < 150
