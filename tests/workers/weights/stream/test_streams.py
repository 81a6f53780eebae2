"""Who gets slices over connections of their own, and what happens where these fail."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core.errors import PeerGone, WireError
from rhymed.core.messages import GetSlice, GetStream, Slice, Stream
from rhymed.core.wire.keys import OPEN, Keyring, make_keys
from rhymed.core.wire.sockets import Parcel
from rhymed_workers.weights import channel, sender, sources
from rhymed_workers.weights.sender import TICKETS, StreamServer
from rhymed_workers.weights.slices import MappedFile
from rhymed_workers.weights.sources import Streams, ask
from tests.workers.weights.peers import fetchers, trainer, words

CONTENT = bytes(range(256)) * 4096
LOCAL = "tcp://127.0.0.1:5552"


async def content(message: GetSlice) -> Parcel:
    if message.index:
        raise WireError(f"slice {message.index} is not here")
    return Parcel(Slice(), [CONTENT])


@pytest.fixture
async def serving() -> AsyncIterator[StreamServer]:
    made = StreamServer(LOCAL, content, OPEN)
    yield made
    made.close()


@pytest.fixture
async def streams(serving: StreamServer) -> AsyncIterator[Streams]:
    async def offer() -> Stream:
        return serving.offer()

    with ThreadPoolExecutor(4) as threads:
        made = Streams(LOCAL, offer, threads, most=2, reach_s=5)
        yield made
        made.close()


def take(index: int = 0) -> Any:
    def work(open_channel: channel.Channel) -> bytes:
        _, size = ask(open_channel, GetSlice(edition="e", index=index), 30)
        into = bytearray(size)
        open_channel.receive_content(memoryview(into))
        return bytes(into)

    return work


async def test_one_connection_carries_many_slices_and_errors_come_back(
    serving: StreamServer, streams: Streams
) -> None:
    assert [await streams.use(take()) for _ in range(3)] == [CONTENT] * 3
    assert len(serving.places) == 1
    assert await asyncio.gather(*(streams.use(take()) for _ in range(5))) == [CONTENT] * 5
    assert len(serving.places) == 2
    with pytest.raises(WireError, match="slice 7 is not here"):
        await streams.use(take(7))
    assert await streams.use(take()) == CONTENT


async def test_a_server_that_ends_is_not_asked_again(serving: StreamServer, streams: Streams) -> None:
    assert await streams.use(take()) == CONTENT
    serving.close()
    assert await streams.use(take()) is None
    assert await streams.use(take()) is None


async def test_connections_that_ended_while_they_were_idle_are_replaced(
    serving: StreamServer, streams: Streams
) -> None:
    """A server closes them after two minutes, and loses all when it is started again."""
    assert await asyncio.gather(streams.use(take()), streams.use(take())) == [CONTENT] * 2
    for idle in streams._idle:
        idle._socket.shutdown(socket.SHUT_RDWR)
    assert await streams.use(take()) == CONTENT


async def test_the_next_download_tries_again_if_streams_have_worked(serving: StreamServer, streams: Streams) -> None:
    def broken(open_channel: channel.Channel) -> bytes:
        raise PeerGone("the server was killed")

    assert await streams.use(broken) is None
    streams.close()
    assert await streams.use(take()) is None, "none has worked"
    streams._usable = True
    assert await streams.use(take()) == CONTENT
    assert await streams.use(broken) is None
    assert await streams.use(take()) is None, "not in this download"
    streams.close()
    assert await streams.use(take()) == CONTENT


async def leaving_none(streams: Streams, work: Any, *, cancel: bool = False) -> list[socket.socket]:
    """Runs `use`, closes the streams while it runs or cancels it, and returns the sockets that it made."""
    task = asyncio.ensure_future(streams.use(work))
    await asyncio.to_thread(work.begun.wait, 60)
    if cancel:
        task.cancel()
    else:
        streams.close()
    work.may.set()
    await asyncio.gather(task, return_exceptions=True)
    return work.sockets


class Held:
    """A blocking call that waits until it may continue. Keeps the sockets that it is given."""

    def __init__(self, call: Any = None) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.sockets: list[socket.socket] = []
        self._call = call

    def __call__(self, given: Any, *rest: Any) -> Any:
        self.sockets.append(getattr(given, "_socket", given))
        done = self._call(given, *rest) if self._call else None
        self.begun.set()
        assert self.may.wait(60)
        return done


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_connection_that_is_used_while_the_download_ends_is_closed(streams: Streams, cancel: bool) -> None:
    [used] = await leaving_none(streams, Held(), cancel=cancel)
    assert used.fileno() < 0
    assert not streams._idle


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_connection_that_is_made_while_the_download_ends_is_closed(
    streams: Streams, cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting = Held(sources._connect)
    monkeypatch.setattr(sources, "_connect", connecting)
    work = Held()
    work.begun, work.may, work.sockets = connecting.begun, connecting.may, connecting.sockets
    [made] = await leaving_none(streams, work, cancel=cancel)
    assert made.fileno() < 0
    assert not streams._idle


async def test_a_connection_that_is_offered_after_the_download_has_ended_is_not_kept(serving: StreamServer) -> None:
    asked, may = asyncio.Event(), asyncio.Event()

    async def offer() -> Stream:
        asked.set()
        await may.wait()
        return serving.offer()

    with ThreadPoolExecutor(1) as threads:
        made = Streams(LOCAL, offer, threads, most=1, reach_s=5)
        work = Held()
        work.may.set()
        task = asyncio.ensure_future(made.use(work))
        await asked.wait()
        made.close()
        may.set()
        await task
        assert [one.fileno() for one in work.sockets] == [-1]


@pytest.mark.parametrize(
    "garbage", [{"key": b"short"}, {"port": 70_000}, {"port": -1}, {"ticket": b""}, {"ticket": bytes(16)}]
)
async def test_a_wrong_offer_costs_speed_alone(
    serving: StreamServer, garbage: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[socket.socket] = []
    real = sources._connect

    def kept(connection: socket.socket, *rest: Any) -> None:
        made.append(connection)
        real(connection, *rest)

    async def offer() -> Stream:
        return msgspec.structs.replace(serving.offer(), **garbage)

    monkeypatch.setattr(sources, "_connect", kept)
    monkeypatch.setattr(sender, "HELLO_S", 0.2)
    with ThreadPoolExecutor(1) as threads:
        streams = Streams(LOCAL, offer, threads, most=1, reach_s=5)
        assert await streams.use(take()) is None
        assert all(one.fileno() < 0 for one in made)
        assert "which is slower" in caplog.text


async def test_a_worker_that_cannot_seal_uses_the_link(
    serving: StreamServer, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving._sealed = True
    monkeypatch.setattr(sources, "can_seal", lambda: False)
    assert await streams.use(take()) is None


async def test_silent_peers_do_not_keep_others_out(serving: StreamServer, streams: Streams) -> None:
    port = serving.offer().port
    silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(sender.WAITING + 20)]
    try:
        assert await streams.use(take()) == CONTENT
        assert len(serving.places._waiting) <= sender.WAITING
    finally:
        for one in silent:
            one.close()


async def test_a_silent_peer_is_closed_soon(serving: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "HELLO_S", 0.1)
    assert await asyncio.to_thread(refused, serving.offer().port, b"half")


async def test_at_most_so_many_are_admitted(
    serving: StreamServer, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ADMITTED", 1)
    assert await streams.use(take()) == CONTENT
    assert await asyncio.to_thread(refused, serving.offer().port, serving.offer().ticket)
    assert len(serving.places) == 1


def test_the_oldest_of_the_address_with_most_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "WAITING", 3)
    made = [socket.socket() for _ in range(5)]
    found = sender.Places()
    for connection, address in zip(made, "abbcd", strict=True):
        assert found.enter(connection, address)
    assert [one.fileno() < 0 for one in made] == [True, True, False, False, False], "b's oldest, then a's"
    assert not found.admit(made[1])
    assert found.admit(made[2])
    found.close()
    assert all(one.fileno() < 0 for one in made)
    assert not found.enter(made[0], "a")


def refused(port: int, first: bytes) -> bool:
    """Whether the server closes a connection that begins so."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(first)
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True


async def test_only_a_fresh_ticket_is_admitted_and_once(
    serving: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = serving.offer()
    assert await asyncio.to_thread(refused, offer.port, bytes(16))
    with socket.create_connection(("127.0.0.1", offer.port), 10) as connection:
        connection.sendall(offer.ticket)
        while not serving.places:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(refused, offer.port, offer.ticket), "it was used"
    old = serving.offer()
    serving._tickets[old.ticket] = b"", time.monotonic() - 1
    assert await asyncio.to_thread(refused, offer.port, old.ticket)
    offers = [serving.offer() for _ in range(3 * TICKETS)]
    assert list(serving._tickets) == [offer.ticket for offer in offers[-TICKETS:]]


async def test_nonsense_after_the_ticket_ends_the_connection(serving: StreamServer) -> None:
    for nonsense in (b"\xff" * 64, (3).to_bytes(4, "big") + b"abc"):
        offer = serving.offer()
        assert await asyncio.to_thread(refused, offer.port, offer.ticket + nonsense)


@pytest.mark.parametrize("address", ["ipc:///tmp/none", "inproc://weights", "tcp://192.0.2.7:5552"])
async def test_some_addresses_have_no_streams(address: str) -> None:
    made = StreamServer(address, content, OPEN)
    assert made.offer() == Stream()
    made.close()


@pytest.fixture(params=["open", "keys"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Keyring]:
    if request.param == "open":
        return {"trainer": OPEN, "rollout": OPEN}
    pytest.importorskip("cryptography")
    make_keys(tmp_path / "keys", ("trainer", "rollout"))
    return {"trainer": Keyring("trainer", tmp_path / "keys"), "rollout": Keyring("rollout", tmp_path / "keys")}


async def test_the_trainer_and_relays_send_weights_that_way(
    tmp_path: Path, keys: dict[str, Keyring], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    real = StreamServer._send

    def counted(self: StreamServer, to: channel.Channel, message: GetSlice) -> None:
        sent.append("sealed" if to._cipher is not None else "open")
        real(self, to, message)

    monkeypatch.setattr(StreamServer, "_send", counted)
    async with trainer(tmp_path, keys["trainer"]) as made:
        data = made.publish(1, words(4))
        with fetchers(tmp_path, 2, keys["rollout"]) as workers:
            for worker in workers:
                assert (await worker.fetch(1, made.address)).read_bytes() == data
            assert len(made.sent) == 5, "the second worker's slices come from the first"
            assert len(sent) == 10
            assert set(sent) == {"open" if keys["trainer"] is OPEN else "sealed"}


async def test_a_port_that_cannot_be_reached_or_breaks_costs_speed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with trainer(tmp_path) as made:
        data = made.publish(1, words(4))
        with fetchers(tmp_path, 1) as (worker,), monkeypatch.context() as patch:
            patch.setattr(StreamServer, "offer", lambda self: Stream(port=1))
            assert (await worker.fetch(1, made.address)).read_bytes() == data
        assert "which is slower" in caplog.text
        caplog.clear()
        with fetchers(tmp_path, 1) as (worker,), monkeypatch.context() as patch:
            patch.setattr(StreamServer, "_send", lambda self, to, message: to.close())
            assert (await worker.fetch(1, made.address)).read_bytes() == data
        assert "which is slower" in caplog.text


async def test_a_full_disk_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MappedFile, index: int) -> memoryview:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with trainer(tmp_path) as made:
        made.publish(1, words(4))
        monkeypatch.setattr(MappedFile, "room", full)
        with fetchers(tmp_path, 1) as (worker,), pytest.raises(WireError, match="has no room for version 1"):
            await worker.fetch(1, made.address)


async def test_requests_for_streams_are_answered_over_the_link(tmp_path: Path) -> None:
    async with trainer(tmp_path) as made:
        answer = await made.server._answer(b"", GetStream(), [])
        assert isinstance(answer, Stream)
        assert answer.port
        assert not answer.key
