"""How much a peer may request of a server, and the penalty for invalid messages. Pure: time is a parameter.

Invariant: the state kept per peer is bounded, for any number of peers and any names. `rhymed.core.wire.sockets` sets
the sizes that zmq itself enforces. docs/security.md lists the resulting memory bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, Overloaded

MiB = 1 << 20

MAX_PEERS = 10_000  # remembered; beyond that, the one that was silent longest is forgotten
BAD_MESSAGES = 100  # invalid ones in a window, then the peer is ignored
BAD_WINDOW_S = 10.0
IGNORE_S = 10.0
OPEN_FILES = 65_536  # of a server on TCP, if the system allows it


@dataclass(frozen=True)
class Limits:
    """Of one kind of receiver. A frame that is too large closes the connection; other violations are answered."""

    frame_bytes: int
    body_bytes: int
    frames: int  # arrays after envelope and body
    in_flight: int  # unanswered requests of one peer
    held_bytes: int  # of unanswered requests of all peers
    per_s: float  # messages of one peer, on average
    burst: int  # messages of one peer at once
    queued_in: int  # unread messages of one peer; then its connection is not read any more
    queued_out: int  # messages that one peer has not read; more are dropped


BROKER = Limits(4 * MiB, 4 * MiB, 0, 4096, 256 * MiB, 5_000, 20_000, 1_000, 10_000)
STORE = Limits(256 * MiB, 64 * MiB, 4, 8192, 4096 * MiB, 20_000, 50_000, 1_000, 10_000)
WEIGHTS = Limits(64 << 10, 64 << 10, 0, 16, 16 * MiB, 1_000, 1_000, 64, 16)
OTHER = Limits(1024 * MiB, 64 * MiB, 1024, 8192, 4096 * MiB, 50_000, 50_000, 10_000, 10_000)

RECEIVERS: dict[Any, Limits] = {
    messages.ToBroker: BROKER,
    messages.ToStore: STORE,
    messages.ToWeights: WEIGHTS,
    messages.GetSlice: WEIGHTS,  # of a relay
}
"""By the union of messages that a receiver accepts."""


def limits_of(accepts: Any) -> Limits:
    return RECEIVERS.get(accepts, OTHER)


def raise_file_limit() -> None:
    """Raise the soft limit of open files: every connection needs one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass
class LogThrottle:
    """Writes a few log lines per window and counts the rest, so that a flood of messages does not fill the disk."""

    lines: int = 10
    window_s: float = 10.0
    _since: float = field(default=-1e9, init=False)
    _written: int = field(default=0, init=False)
    _dropped: int = field(default=0, init=False)

    def permit(self, now: float) -> str | None:
        """The suffix of the line that may be written now; `None`: write nothing."""
        if now - self._since >= self.window_s:
            dropped, self._since, self._written, self._dropped = self._dropped, now, 1, 0
            return f" ({dropped} similar lines dropped before)" if dropped else ""
        if self._written < self.lines:
            self._written += 1
            return ""
        self._dropped += 1
        return None


@dataclass(slots=True)
class _Peer:
    tokens: float  # of its token bucket
    seen: float
    in_flight: int = 0
    bad: int = 0
    bad_since: float = 0.0
    ignored_until: float = 0.0


class RateLimiter:
    """Enforces the limits of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._peers)

    def ignores(self, peer: bytes, now: float) -> bool:
        """Whether the peer sent too many invalid messages lately."""
        state = self._peers.get(peer)
        return state is not None and now < state.ignored_until

    def admit(self, peer: bytes, body: int, arrays: int, frames: int, now: float) -> None:
        """Check a message before it is decoded; sizes in bytes. Raises `MalformedMessage` or `Overloaded`."""
        limits, state = self._limits, self._peer(peer, now)
        if body > limits.body_bytes:
            raise MalformedMessage(f"a message of {body} bytes; at most {limits.body_bytes} are accepted")
        if frames > limits.frames:
            raise MalformedMessage(f"{frames} arrays in a message; at most {limits.frames} are accepted")
        state.tokens = min(limits.burst, state.tokens + (now - state.seen) * limits.per_s)
        state.seen = now
        if state.tokens < 1:
            raise Overloaded(f"more than {limits.per_s:g} messages per second; try again later")
        state.tokens -= 1
        if state.in_flight >= limits.in_flight:
            raise Overloaded(f"{state.in_flight} requests are being answered already; try again later")
        if self._held_bytes + body + arrays > limits.held_bytes:
            raise Overloaded(f"{self._held_bytes >> 20} MiB of requests are being answered; try again later")
        state.in_flight += 1
        self._held_bytes += body + arrays

    def done(self, peer: bytes, size: int) -> None:
        """An admitted message is answered; `size` is its body and arrays in bytes."""
        self._held_bytes -= size
        state = self._peers.get(peer)
        if state is not None and state.in_flight:  # a peer forgotten in between starts again at 0
            state.in_flight -= 1

    def penalize(self, peer: bytes, now: float) -> bool:
        """Count an invalid message. True: it was one too many, and the peer is ignored for `IGNORE_S`."""
        state = self._peer(peer, now)
        if now - state.bad_since > BAD_WINDOW_S:
            state.bad, state.bad_since = 0, now
        state.bad += 1
        if state.bad <= BAD_MESSAGES:
            return False
        state.bad, state.ignored_until = 0, now + IGNORE_S
        return True

    def _peer(self, peer: bytes, now: float) -> _Peer:
        if (state := self._peers.get(peer)) is None:
            state = self._peers[peer] = _Peer(self._limits.burst, now)
            if len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        else:
            self._peers.move_to_end(peer)
        return state
