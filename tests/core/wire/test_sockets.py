"""Real sockets: what a link promises, and what strangers and failures on it may not break."""

import asyncio
import contextlib
import dataclasses
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from rhymed.core import errors
from rhymed.core.messages import (
    Done,
    Envelope,
    Failure,
    Finish,
    GetManifest,
    GetQueues,
    Leave,
    Message,
    SampleId,
    ScoreSamples,
    ToBroker,
    ToReward,
)
from rhymed.core.wire import limits, sockets
from rhymed.core.wire.keys import Keyring, make_keys
from rhymed.core.wire.sockets import Client, Parcel, Server

Loose = ToBroker | GetManifest  # a receiver of which `rhymed.core.wire.limits` knows nothing in particular

Answer = Callable[[bytes, Any, Sequence[bytes]], Awaitable[Message | Parcel]]


class Counter:
    """Answers Leave by what its worker is called, and remembers who asked."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.peers: list[bytes] = []

    async def __call__(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> Message | Parcel:
        self.heard.append(message)
        self.peers.append(peer)
        match message:
            case Leave(worker="hang"):
                await asyncio.sleep(3600)
            case Leave(worker="full"):
                raise errors.StoreFull("no room")
            case Leave(worker="bug"):
                raise KeyError("bug")
            case Leave(worker="echo"):
                return Parcel(Done(), frames)
        return Done()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/link"


@pytest.fixture
async def counter(address: str) -> AsyncIterator[Counter]:
    made = Counter()
    server = Server(address, Loose, made)
    yield made
    server.close()


@pytest.fixture
async def client(address: str, counter: Counter) -> AsyncIterator[Client]:
    made = Client(address, "worker-0", peer="broker")
    yield made
    made.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def raw(address: str) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    made = context.socket(zmq.DEALER)
    made.linger = 1000
    made.connect(address)
    return made


async def test_a_request_gets_its_reply(client: Client, counter: Counter) -> None:
    assert (await client.request(Leave(worker="a"))).message == Done()
    assert counter.heard == [Leave(worker="a")]
    assert [peer.partition(b"#")[0] for peer in counter.peers] == [b"worker-0"]


async def test_many_requests_at_once_are_paired_right(client: Client) -> None:
    async def ask(number: int) -> bool:
        frames = (await client.request(Leave(worker="echo"), str(number).encode())).frames
        return [bytes(frame) for frame in frames] == [str(number).encode()]

    assert all(await asyncio.gather(*(ask(number) for number in range(2000))))


async def test_arrays_travel_as_frames_and_empty_ones_too(client: Client) -> None:
    big = np.arange(5_000_000, dtype=np.uint32)
    answer = await client.request(Leave(worker="echo"), big, np.zeros(0, np.float32), b"")
    assert [len(frame) for frame in answer.frames] == [big.nbytes, 0, 0]
    assert (np.frombuffer(answer.frames[0], np.uint32) == big).all()


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:*", "inproc://link"])
async def test_other_transports_speak_the_same(where: str) -> None:
    server = Server(where, Loose, Counter())
    client = Client(server.address, peer="broker")
    assert (await client.request(Leave(worker="echo"), b"x", deadline_s=60)).message == Done()
    with pytest.raises(errors.StoreFull):
        await client.request(Leave(worker="full"), deadline_s=60)
    client.close()
    server.close()


async def test_the_deadline_names_peer_and_phase(client: Client, address: str) -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await client.request(Leave(worker="hang"), deadline_s=0.05, phase="leaving")
    assert str(caught.value) == f"broker at {address} did not answer within 0.05 s (leaving)"
    nobody = Client(f"{address}-nobody", peer="broker")
    with pytest.raises(errors.DeadlineExceeded, match=r"\(GetQueues\)"):
        await nobody.request(GetQueues(), deadline_s=0.05)
    nobody.close()
    assert (await client.request(Leave(worker="a"))).message == Done()


async def test_errors_of_the_peer_arrive_by_their_name(client: Client) -> None:
    with pytest.raises(errors.StoreFull, match="no room"):
        await client.request(Leave(worker="full"))
    with pytest.raises(errors.RemoteFailure, match="KeyError: 'bug'"):
        await client.request(Leave(worker="bug"))


async def test_a_message_that_the_receiver_does_not_take_is_refused(client: Client, counter: Counter) -> None:
    with pytest.raises(errors.MalformedMessage, match="'finish'"):
        await client.request(Finish(reason="x"))
    assert not counter.heard


async def test_events_need_no_answer_and_their_failures_hurt_nobody(client: Client, counter: Counter) -> None:
    for worker in ("a", "full", "bug"):
        client.notify(Leave(worker=worker))
    await client.request(Leave(worker="b"))
    await until(lambda: len(counter.heard) == 4)


async def test_the_server_asks_its_peers(address: str) -> None:
    heard: list[Any] = []

    async def take(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        heard.append(message)
        return Done()

    counter = Counter()
    server = Server(address, Loose, counter)
    client = Client(address, "reward-0", peer="broker", accepts=ToReward, handler=take)
    await client.request(GetQueues())
    (peer,) = counter.peers
    rate = ScoreSamples(samples=[SampleId(0, "a", 1)])
    assert (await server.request(peer, rate, deadline_s=60)).message == Done()
    server.notify(peer, Finish(reason="over"))
    await until(lambda: len(heard) == 2)
    assert heard == [rate, Finish(reason="over")]
    with pytest.raises(errors.PeerGone, match="reward-9 is not connected"):
        await server.request(b"reward-9#12", rate, deadline_s=60)
    client.close()
    await until(lambda: _refused(server, peer))
    server.close()


def _refused(server: Server, peer: bytes) -> bool:
    try:
        server.notify(peer, Finish(reason="x"))
    except errors.PeerGone:
        return True
    return False


async def test_a_client_without_a_handler_refuses_requests(address: str) -> None:
    counter = Counter()
    server = Server(address, Loose, counter)
    client = Client(address, "deaf", peer="broker")
    await client.request(GetQueues())
    with pytest.raises(errors.MalformedMessage, match="accepts no requests"):
        await server.request(counter.peers[0], Finish(reason="x"), deadline_s=60)
    client.close()
    server.close()


async def test_a_server_may_restart(address: str) -> None:
    first = Server(address, Loose, Counter())
    client = Client(address, "worker-0", peer="broker")
    await client.request(GetQueues())
    first.close()

    async def ask() -> Message:
        while True:  # what is sent while a server goes may go with it: every caller asks again
            with contextlib.suppress(errors.DeadlineExceeded):
                return (await client.request(GetQueues(), deadline_s=0.5)).message

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.1)
    second = Server(address, Loose, Counter())
    assert await asyncio.wait_for(asking, 60) == Done()
    client.close()
    second.close()


@pytest.mark.parametrize("where", ["ipc", "tcp"])
async def test_what_a_dead_server_was_asked_its_successor_answers(where: str, address: str) -> None:
    dead, successor = Counter(), Counter()
    server = Server(address if where == "ipc" else "tcp://127.0.0.1:*", Loose, dead)
    client = Client(server.address, "worker-0", peer="server")
    asking = asyncio.ensure_future(client.request(Leave(worker="hang"), deadline_s=60))
    await client.request(Leave(worker="anybody"), deadline_s=60)
    dead_address = server.address
    server.close()
    await asyncio.sleep(0.2)

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        await successor(peer, Leave(worker="noted"), frames)
        return Done()

    again = Server(dead_address, Loose, answer)
    await asyncio.wait_for(asking, 60)
    assert len(successor.heard) == 1, "only what was not answered is asked again"
    client.close()
    again.close()


@pytest.mark.parametrize("locked", [False, True])
async def test_a_client_that_does_not_wait_for_a_dead_server(locked: bool, tmp_path: Path) -> None:
    if locked:
        make_keys(tmp_path, ("broker", "rollout"))
    ring = Keyring("broker", tmp_path if locked else None)

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        if isinstance(message, Leave):
            await asyncio.sleep(3600)
        return Done()

    server = Server("tcp://127.0.0.1:*", ToBroker, answer, keys=ring)
    keys = dataclasses.replace(ring, role="rollout")
    client = Client(server.address, "rollout-0", peer="relay", keys=keys, resend=False)
    await client.request(GetQueues())
    asking = asyncio.ensure_future(client.request(Leave(worker="rollout-0"), deadline_s=600))
    await client.request(GetQueues())  # the first question has arrived
    server.close()
    with pytest.raises(errors.PeerGone, match="the connection ended"):
        await asking
    stranger = Client(server.address, "rollout-1", peer="relay", keys=keys, resend=False)
    with pytest.raises(errors.PeerGone, match="the connection ended"):
        await stranger.request(GetQueues(), deadline_s=600)
    for made in (client, stranger):
        made.close()


async def test_large_frames_can_be_had_without_a_copy(address: str, counter: Counter) -> None:
    client = Client(address, "worker-1", peer="broker", views=True)
    small, large = bytes(10), bytes(range(256)) * 1024
    parcel = await client.request(Leave(worker="echo"), small, large)
    assert [type(frame) for frame in parcel.frames] == [bytes, memoryview]
    assert [bytes(frame) for frame in parcel.frames] == [small, large]
    client.close()


async def test_nobody_takes_over_the_link_of_another_with_the_same_name(address: str) -> None:
    heard: list[str] = []

    def taker(name: str) -> Answer:
        async def take(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
            heard.append(name)
            return Done()

        return take

    counter = Counter()
    server = Server(address, Loose, counter)
    clients = [
        Client(address, "reward-0", peer="broker", accepts=ToReward, handler=taker(name)) for name in ("old", "new")
    ]
    for client in clients:
        await client.request(GetQueues())
    for peer in counter.peers:
        await server.request(peer, Finish(reason="x"), deadline_s=60)
    assert heard == ["old", "new"]
    for link in (*clients, server):
        link.close()


async def test_a_server_knows_which_peers_are_connected(address: str) -> None:
    counter = Counter()
    server = Server(address, Loose, counter)
    client = Client(address, "reward-0", peer="broker")
    await client.request(GetQueues())
    (peer,) = counter.peers
    assert server.is_connected(peer)
    await client.request(GetQueues())  # what the peer was sent does not disturb it
    client.close()
    await until(lambda: not server.is_connected(peer))
    server.close()


async def test_closing_ends_open_requests(address: str, counter: Counter) -> None:
    client = Client(address, peer="broker")
    asking = asyncio.create_task(client.request(Leave(worker="hang")))
    await until(lambda: counter.heard)
    client.close()
    client.close()
    with pytest.raises(errors.PeerGone, match="closed"):
        await asking
    with pytest.raises(errors.PeerGone, match="closed"):
        await client.request(GetQueues())


def garbage() -> list[list[bytes]]:
    """Handmade frames of the wrong kind, and mutations of a good message (seeded)."""
    envelope = msgspec.msgpack.encode(Envelope(kind="request", id=1))
    body = msgspec.msgpack.encode(Leave(worker="a"))
    deep = b"\x91" * 100_000
    reply = msgspec.msgpack.encode(Envelope(kind="reply", id=1))
    made = [
        [b""],
        [b"", b""],
        [b"\xc1"],
        [envelope],
        [deep, body],
        [envelope, deep],
        [envelope, b""],
        [b"\x81\xa4kind\xa7\xffequest", body],
        [envelope, b"\x82\xa4type\xa5leave\xa6worker\xa1\xff"],
        [b"\x81\xa1x" + deep, body],
        [reply, body],
        [envelope, msgspec.msgpack.encode({"type": "leave", "worker": "a", "surprise": 1})],
        [envelope, msgspec.msgpack.encode({"type": "no_such"})],
        [envelope, b"not msgpack at all"],
        [b"x" * 1_000_000] * 3,
        [envelope, body, *[b"frame"] * 1000],
    ]
    draw = random.Random(0)
    for _ in range(500):
        parts = [bytearray(envelope), bytearray(body)]
        for _ in range(3):
            part = draw.choice(parts)
            part[draw.randrange(len(part))] = draw.randrange(256)
        made.append([bytes(part) for part in parts])
    return made


async def test_garbage_from_a_stranger_hurts_nobody_else(
    address: str,
    client: Client,
    counter: Counter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "BAD_MESSAGES", 1000)  # it is to be listened to until the end
    stranger = raw(address)
    for parts in garbage():
        stranger.send_multipart(parts)
        assert (await client.request(Leave(worker="b"), deadline_s=60)).message == Done()
    # Its last word is heard, after all that: the server has read everything before it.
    stranger.send_multipart([msgspec.msgpack.encode(Envelope(kind="request", id=7)), b"\xc1"])
    failures = []
    while not failures or failures[-1][0].id != 7:
        await until(lambda: stranger.poll(0))
        head, body = stranger.recv_multipart()
        failures.append((msgspec.msgpack.decode(head, type=Envelope), msgspec.msgpack.decode(body)))
    assert failures[-1][1]["error"] == "MalformedMessage"
    assert not any(body.get("error") == "RemoteFailure" for _, body in failures)
    assert not [record for record in caplog.records if record.exc_info]
    stranger.close()


async def test_garbage_from_the_server_is_an_error_of_the_request(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    server = context.socket(zmq.ROUTER)
    server.bind(f"ipc://{tmp_path}/raw")
    client = Client(f"ipc://{tmp_path}/raw", peer="broker")
    bodies = [b"\xc1", b"\x91" * 100_000, b"\x81\xa4type\xa3\xffyz", msgspec.msgpack.encode(GetQueues())]
    for body in bodies:
        asking = asyncio.create_task(client.request(GetQueues(), deadline_s=60))
        await until(lambda: server.poll(0))
        peer, head, _ = server.recv_multipart()
        number = msgspec.msgpack.decode(head, type=Envelope).id
        server.send_multipart([peer, msgspec.msgpack.encode(Envelope(kind="reply", id=number)), body])
        with pytest.raises(errors.MalformedMessage, match="reply"):
            await asking
    client.close()
    server.close(linger=0)


async def test_a_reply_to_somebody_elses_request_is_ignored(address: str) -> None:
    """A peer cannot answer for another: the id alone does not pair."""
    counter = Counter()
    server = Server(address, Loose, counter)
    victim = Client(address, "victim", peer="broker", accepts=ToReward, handler=_never)
    await victim.request(GetQueues())
    asking = asyncio.create_task(server.request(counter.peers[0], Finish(reason="x"), deadline_s=0.5))
    stranger = raw(address)
    for number in range(20):
        head = msgspec.msgpack.encode(Envelope(kind="reply", id=number))
        stranger.send_multipart([head, msgspec.msgpack.encode(Done())])
    with pytest.raises(errors.DeadlineExceeded, match="victim did not answer"):
        await asking
    stranger.close()
    victim.close()
    server.close()


async def _never(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
    await asyncio.sleep(3600)
    return Done()


async def test_a_failure_of_an_unknown_name_is_a_remote_failure(tmp_path: Path) -> None:
    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        return Failure(error="OfTheFuture", message="?")

    server = Server(f"ipc://{tmp_path}/link", ToBroker, answer)
    client = Client(server.address, peer="broker")
    with pytest.raises(errors.RemoteFailure):
        await client.request(GetQueues())
    client.close()
    server.close()


async def test_two_servers_on_one_path_are_refused_and_the_first_lives_on(address: str, client: Client) -> None:
    with pytest.raises(errors.AddressRefused, match="living process"):
        Server(address, Loose, Counter())
    assert (await client.request(Leave(worker="a"), deadline_s=60)).message == Done()


async def test_two_servers_on_one_port_are_refused() -> None:
    first = Server("tcp://127.0.0.1:*", ToBroker, Counter())
    with pytest.raises(errors.AddressRefused, match=r"cannot bind tcp://.*in use"):
        Server(first.address, ToBroker, Counter())
    first.close()


async def test_a_socket_file_that_was_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its folder; those who were connected stay connected."""
    monkeypatch.setattr(sockets, "LOOK_S", 0.02)
    folder = tmp_path / "sockets"
    server = Server(f"ipc://{folder}/link", Loose, Counter())
    early = Client(server.address, "early", peer="broker")
    await early.request(Leave(worker="a"))
    shutil.rmtree(folder)
    late = Client(server.address, "late", peer="broker")
    try:
        assert (await late.request(Leave(worker="a"), deadline_s=60)).message == Done()
        await early.request(Leave(worker="a"))
    finally:
        for end in (early, late, server):
            end.close()


async def test_an_abstract_socket_has_no_file_to_look_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(f"ipc://@{tmp_path}", Loose, Counter())
    client = Client(server.address, "early", peer="broker")
    try:
        assert (await client.request(Leave(worker="rollout-0"), deadline_s=60)).message == Done()
        assert server._looking is None
    finally:
        client.close()
        server.close()
    assert caplog.records == []


async def test_the_socket_file_of_a_dead_server_is_removed(tmp_path: Path) -> None:
    program = f"import zmq; zmq.Context().socket(zmq.ROUTER).bind('ipc://{tmp_path}/link'); import os; os._exit(0)"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "link").exists()
    server = Server(f"ipc://{tmp_path}/link", ToBroker, Counter())
    client = Client(server.address, peer="broker")
    assert (await client.request(GetQueues(), deadline_s=60)).message == Done()
    client.close()
    server.close()


@pytest.mark.parametrize("where", ["tcp://0.0.0.0:*", "tcp://*:*", f"tcp://{socket.gethostname()}:*", "tcp://[::]:*"])
async def test_an_open_address_is_refused(where: str) -> None:
    with pytest.raises(errors.AddressRefused, match="open to the network"):
        Server(where, Loose, Counter())


async def test_an_open_address_is_allowed_when_said() -> None:
    server = Server("tcp://0.0.0.0:*", ToBroker, Counter(), keys=Keyring(insecure=True))
    server.close()


@pytest.mark.parametrize(
    "where", ["ipc:///proc/no/such/link", "tcp://127.0.0.1:99999", "no address", "udp://127.0.0.1:1"]
)
async def test_an_address_that_cannot_be_bound(where: str) -> None:
    with pytest.raises(errors.AddressRefused):
        Server(where, Loose, Counter())


@pytest.mark.parametrize("where", ["no address", "tcp://127.0.0.1:99999", "tcp://127.0.0.1"])
async def test_an_address_that_cannot_be_connected_to(where: str) -> None:
    with pytest.raises(errors.AddressRefused):
        Client(where, peer="broker")


async def test_a_peer_that_does_not_read_is_back_pressure(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SEND_HWM", 10)
    client = Client(f"{address}-nobody", peer="broker")
    for _ in range(10):
        client.notify(GetQueues())
    with pytest.raises(errors.Overloaded):
        await client.request(GetQueues(), deadline_s=60)
    client.close()


MAPPED = "tcp://[::ffff:127.0.0.1]:1"  # how zmq reports a bound IPv4 address


def test_local_addresses() -> None:
    for address in ("ipc:///tmp/x", "inproc://x", "tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", MAPPED):
        assert sockets.is_local(address)
    for address in ("tcp://0.0.0.0:1", "tcp://*:1", "tcp://10.0.0.1:1", "tcp://eth0:1", "tcp://127.0.0.1.evil:1"):
        assert not sockets.is_local(address)


async def test_a_send_that_fails_does_not_hide_what_has_arrived(address: str) -> None:
    """The socket's descriptor reports an arrival once, and a failing send consumes that report."""
    counter = Counter()
    server = Server(address, Loose, counter)
    client = Client(address, peer="server")
    try:
        await client.request(Leave(worker="rollout-0"), deadline_s=60)
        asked = asyncio.create_task(client.request(Leave(worker="rollout-1"), deadline_s=5))
        await asyncio.sleep(0)  # it is sent
        time.sleep(0.5)  # noqa: ASYNC251 - and arrives, while the event loop does not look
        assert not server.is_connected(b"nobody")
        await asked
    finally:
        client.close()
        server.close()
