"""Connections for slices, with and without a key, between two ends and an attacker in the middle."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from rhymed.core.errors import DeadlineExceeded, MalformedMessage, PeerGone
from rhymed_workers.weights.channel import RECORD_BYTES, TAG_BYTES, Channel

pytest.importorskip("cryptography")

KEY = bytes(range(32))
CONTENT = os.urandom(2 * RECORD_BYTES + 77)

Ends = tuple[Channel, Channel]


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


@pytest.fixture(params=[b"", KEY], ids=["open", "sealed"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    one, other = pair()
    client, server = Channel(one, key=request.param), Channel(other, key=request.param, server=True)
    for channel in (client, server):
        channel.within(60)
    yield client, server
    client.close()
    server.close()


def wire(content: bytes) -> bytes:
    """What a client sends for this content with `KEY`."""
    one, other = pair()
    sender = Channel(one, key=KEY)
    sender.within(60)
    threading.Thread(target=lambda: (sender.send_content(memoryview(content)), sender.close())).start()
    with other, other.makefile("rb") as read:
        return read.read()


def received(sent: bytes, size: int) -> bytes:
    """What a server makes of these bytes."""
    one, other = pair()
    server, into = Channel(other, key=KEY, server=True), bytearray(size)
    server.within(60)

    def send() -> None:
        with one, contextlib.suppress(OSError):  # the server closes as soon as it refuses something
            one.sendall(sent)

    threading.Thread(target=send).start()
    try:
        server.receive_content(memoryview(into))
    finally:
        server.close()
    return bytes(into)


def test_messages_and_contents_arrive_as_they_were(ends: Ends) -> None:
    client, server = ends
    for content in (b"", b"x", CONTENT):
        client.send(b"give me one")
        assert server.receive() == b"give me one"
        sending = threading.Thread(target=server.send_content, args=(memoryview(content),))
        sending.start()
        client.receive_content(memoryview(into := bytearray(len(content))))
        sending.join()
        assert into == content


def test_a_message_that_is_too_long_is_refused_before_it_is_read(ends: Ends) -> None:
    client, server = ends
    client._socket.sendall((1 << 31).to_bytes(4, "big"))
    with pytest.raises(MalformedMessage, match="2147483648 bytes"):
        server.receive()


def test_silence_ends_at_the_deadline_and_a_closed_connection_at_once(ends: Ends) -> None:
    client, server = ends
    client.within(0.05)
    with pytest.raises(DeadlineExceeded):
        client.receive()
    client.within(60)
    server.close()
    with pytest.raises(PeerGone):
        client.receive()


def test_what_comes_after_the_deadline_is_late_however_steadily_it_comes(ends: Ends) -> None:
    client, server = ends
    server._send(bytes(1000))
    client.within(0)
    with pytest.raises(DeadlineExceeded, match="is late"):
        client.receive_content(memoryview(bytearray(500)))
    with pytest.raises(DeadlineExceeded, match="not taken in time"):
        client.send(b"give me one")


def test_a_call_ends_when_another_thread_closes(ends: Ends) -> None:
    client, _ = ends
    threading.Timer(0.1, client.close).start()
    with pytest.raises(PeerGone):
        client.receive()


def test_nothing_of_the_content_can_be_read_on_the_way() -> None:
    sent = wire(CONTENT)
    assert len(sent) == len(CONTENT) + 3 * TAG_BYTES
    assert received(sent, len(CONTENT)) == CONTENT
    assert CONTENT[:16] not in sent
    assert wire(bytes(64))[:32] != wire(bytes(96))[32:64], "equal blocks look different"


def record(sent: bytes, index: int) -> bytes:
    size = RECORD_BYTES + TAG_BYTES
    return sent[index * size : (index + 1) * size]


@pytest.mark.parametrize(
    "attack",
    [
        lambda sent: bytes([sent[0] ^ 1]) + sent[1:],
        lambda sent: sent[:-1] + bytes([sent[-1] ^ 1]),
        lambda sent: record(sent, 1) + record(sent, 0) + record(sent, 2),
        lambda sent: record(sent, 0) * 2 + record(sent, 2),
        lambda sent: record(sent, 1) + record(sent, 2) + bytes(1 << 20),
    ],
    ids=["changed", "another tag", "moved", "repeated", "left out"],
)
def test_records_that_are_not_the_peers_are_refused(attack: object) -> None:
    with pytest.raises(MalformedMessage, match="changed on its way"):
        received(attack(wire(CONTENT)), len(CONTENT))  # type: ignore[operator]


def test_what_is_cut_off_is_no_content() -> None:
    with pytest.raises(PeerGone):
        received(wire(CONTENT)[:-1], len(CONTENT))


def test_an_answer_is_not_taken_for_a_request() -> None:
    """Both directions have nonces of their own: what a client sent cannot be sent back to it."""
    one, other = pair()
    client, into = Channel(one, key=KEY), bytearray(64)
    client.within(60)
    client.send_content(memoryview(bytes(64)))
    other.sendall(other.recv(1000))
    with pytest.raises(MalformedMessage):
        client.receive_content(memoryview(into))
    client.close()
    other.close()
