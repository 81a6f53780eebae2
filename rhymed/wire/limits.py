"""How much a peer may ask of a server, and what becomes of one that sends nonsense. Pure: the time comes in.

Invariant: what is remembered of peers is bounded, whatever they are called and however many come. Sizes that zmq
itself enforces are passed on by `rhymed.wire.sockets`. The bounds of memory that follow are in docs/security.md.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from rhymed import messages
from rhymed.errors import MalformedMessage, Overloaded

MiB = 1 << 20

PEERS = 10_000  # that are remembered; the one heard longest ago is forgotten
BAD_MESSAGES = 100  # in a window, then the peer is not listened to
BAD_WINDOW_S = 10.0
DEAF_S = 10.0
FILES = 65_536  # that a server on TCP may have open, if the system lets it


@dataclass(frozen=True)
class Limits:
    """Of one kind of receiver. A frame that is too large costs the peer its connection; the rest is answered."""

    frame_bytes: int
    body_bytes: int
    frames: int  # arrays beside envelope and body
    in_hand: int  # requests of one peer that are being answered
    held_bytes: int  # of requests of all peers that are being answered
    per_s: float  # messages of one peer, in the long run
    burst: int  # and at once
    queued_in: int  # messages of one peer that wait to be read; then its connection is not read any more
    queued_out: int  # messages to one peer that it has not taken; more are thrown away


BROKER = Limits(4 * MiB, 4 * MiB, 0, 4096, 256 * MiB, 5_000, 20_000, 1_000, 10_000)
STORE = Limits(256 * MiB, 64 * MiB, 4, 8192, 4096 * MiB, 20_000, 50_000, 1_000, 10_000)
WEIGHTS = Limits(64 << 10, 64 << 10, 0, 16, 16 * MiB, 1_000, 1_000, 64, 16)
OTHER = Limits(1024 * MiB, 64 * MiB, 1024, 8192, 4096 * MiB, 50_000, 50_000, 10_000, 10_000)

RECEIVERS: dict[Any, Limits] = {messages.ToBroker: BROKER, messages.ToStore: STORE, messages.ToWeights: WEIGHTS}
"""By the union of what a receiver takes."""


def limits_of(accepts: Any) -> Limits:
    return RECEIVERS.get(accepts, OTHER)


def more_files() -> None:
    """Let this process open as many files as it may: every connection is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass
class Hush:
    """Log lines about what strangers do: a few a window, then only their number. So a flood does not fill a disk."""

    lines: int = 10
    window_s: float = 10.0
    _since: float = field(default=-1e9, init=False)
    _said: int = field(default=0, init=False)
    _kept: int = field(default=0, init=False)

    def may(self, now: float) -> str | None:
        """What to add to the line that may be written now; `None`: write nothing."""
        if now - self._since >= self.window_s:
            kept, self._since, self._said, self._kept = self._kept, now, 1, 0
            return f" ({kept} more like it before)" if kept else ""
        if self._said < self.lines:
            self._said += 1
            return ""
        self._kept += 1
        return None


@dataclass(slots=True)
class _Account:
    tokens: float
    heard: float
    in_hand: int = 0
    bad: int = 0
    bad_since: float = 0.0
    deaf_until: float = 0.0


class Police:
    """Keeps the limits of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()
        self._held_bytes = 0

    def __len__(self) -> int:
        """Peers that are remembered."""
        return len(self._accounts)

    def listens(self, peer: bytes, now: float) -> bool:
        """False while a peer that sent too much nonsense is ignored."""
        account = self._accounts.get(peer)
        return account is None or now >= account.deaf_until

    def admit(self, peer: bytes, body: int, arrays: int, frames: int, now: float) -> None:
        """Before a message is decoded; sizes in bytes. Raises `MalformedMessage`, or `Overloaded` for too much."""
        limits, account = self._limits, self._account(peer, now)
        if body > limits.body_bytes:
            raise MalformedMessage(f"a message of {body} bytes; at most {limits.body_bytes} are taken here")
        if frames > limits.frames:
            raise MalformedMessage(f"{frames} arrays in a message; at most {limits.frames} are taken here")
        account.tokens = min(limits.burst, account.tokens + (now - account.heard) * limits.per_s)
        account.heard = now
        if account.tokens < 1:
            raise Overloaded(f"more than {limits.per_s:g} messages a second; try again later")
        account.tokens -= 1
        if account.in_hand >= limits.in_hand:
            raise Overloaded(f"{account.in_hand} requests are being answered already; try again later")
        if self._held_bytes + body + arrays > limits.held_bytes:
            raise Overloaded(f"{self._held_bytes >> 20} MiB of requests are being answered; try again later")
        account.in_hand += 1
        self._held_bytes += body + arrays

    def done(self, peer: bytes, size: int) -> None:
        """After an admitted message; `size` as it was admitted, body and arrays."""
        self._held_bytes -= size
        account = self._accounts.get(peer)
        if account is not None and account.in_hand:  # forgotten meanwhile, it begins again at 0
            account.in_hand -= 1

    def blame(self, peer: bytes, now: float) -> bool:
        """It sent what cannot be understood. True: that was too much, and it is not listened to for `DEAF_S`."""
        account = self._account(peer, now)
        if now - account.bad_since > BAD_WINDOW_S:
            account.bad, account.bad_since = 0, now
        account.bad += 1
        if account.bad <= BAD_MESSAGES:
            return False
        account.bad, account.deaf_until = 0, now + DEAF_S
        return True

    def _account(self, peer: bytes, now: float) -> _Account:
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = _Account(self._limits.burst, now)
            if len(self._accounts) > PEERS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(peer)
        return account
