"""One hostile process of `tests.hostile.fuzz`: malformed messages, unknown keys, bytes that are not ZMTP, silence."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time

import zmq

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.keys import Keyring, KeyRole
from tests.hostile.malformed import Malformed

ACCEPTS = {"broker": messages.ToBroker, "store": messages.ToStore, "weights": messages.ToWeights}
SERVERS: dict[str, KeyRole] = {"broker": "broker", "store": "store", "weights": "trainer"}
STOLEN: tuple[KeyRole, ...] = ("rollout", "environment", "reward", "viewer")
SOCKETS = 8
LIFE = 150  # frames per connection: after about as many the server ignores it
STRANGER_EVERY = 5_000  # frames
GARBAGE_EVERY = 1_000
OVERSIZED_EVERY, OVERSIZED = 2_000, 5 << 20  # frames, bytes: too much for broker and weights
SILENT = 100
NAMES = (b"x" * 255, b"\xff", b"honest", b"reward-honest", b"broker")
STUCK_S = 60.0  # a server that accepts nothing for this long is stuck
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


class HostilePeer:
    """Opens connections to one server."""

    def __init__(self, where: RunLayout, target: str, seed: int) -> None:
        self._where, self._target = where, target
        self._address = str(getattr(where, target))
        self._draw = random.Random(seed)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connect(self, role: KeyRole | None) -> zmq.Socket[bytes]:
        """Connects with a role's key; `None`: with an unknown one."""
        link = self._context.socket(zmq.DEALER)
        link.setsockopt(zmq.LINGER, 2000)
        link.setsockopt(zmq.SNDTIMEO, int(1000 * STUCK_S))
        link.setsockopt(zmq.IMMEDIATE, 1)  # back-pressure instead of frames that wait for a refused handshake
        if self._where.keyfolder is not None:
            ring = Keyring(role or "viewer", self._where.keyfolder).to(SERVERS[self._target])
            known = (ring.own_public(), ring.secret())
            link.curve_publickey, link.curve_secretkey = known if role else zmq.curve_keypair()
            link.curve_serverkey = ring.server_key()
        if self._draw.random() < 0.3:  # without keys a name can be taken over: docs/security.md
            link.routing_id = self._draw.choice(NAMES if self._where.keyfolder else NAMES[:2])
        link.connect(self._address)
        return link

    def garbage(self) -> None:
        """Sends bytes that are not ZMTP, or only begin like it."""
        host, _, port = self._address.removeprefix("tcp://").rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as link:
            noise = self._draw.randbytes(self._draw.randrange(1, 5000))
            link.sendall(self._draw.choice((b"", GREETING, b"GET / HTTP/1.1\r\n\r\n", GREETING[:20])) + noise)

    def role(self) -> KeyRole:
        return self._draw.choice(STOLEN)


def main(target: str, config: str, frames: str, seed: str) -> None:
    """Sends `frames` frames and prints their number."""
    peer = HostilePeer(layout_of(Config.model_validate_json(config)), target, int(seed))
    series = Malformed(ACCEPTS[target], int(seed))
    silent = [peer.connect(peer.role()) for _ in range(SILENT)]
    links = [peer.connect(peer.role()) for _ in range(SOCKETS)]
    strangers = []
    sent, wanted = 0, int(frames)
    while sent < wanted:
        link = links[sent % SOCKETS]
        try:
            link.send_multipart(series.next() if sent % OVERSIZED_EVERY else [bytes(OVERSIZED)] * 2)
        except zmq.Again:  # another hostile peer took over its name, so the server no longer reads it
            link.close(linger=0)
            links[sent % SOCKETS] = peer.connect(peer.role())
            continue
        sent += 1
        with contextlib.suppress(zmq.Again):  # some answers are read, most are left
            if sent % 7 == 0:
                link.recv_multipart(zmq.NOBLOCK)
        if sent % LIFE == 0:
            which = (sent // LIFE) % SOCKETS
            links[which].close()
            links[which] = peer.connect(peer.role())
        if sent % GARBAGE_EVERY == 0:
            peer.garbage()
        if sent % STRANGER_EVERY == 0:
            strangers.append(peer.connect(None))
    time.sleep(1.0)
    for link in (*links, *silent, *strangers):
        link.close(linger=2000)
    print(sent)
    sys.stdout.flush()
