"""What one peer may do to a server: as a story of times and sizes."""

import random

import pytest

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, Overloaded
from rhymed.core.wire import limits
from rhymed.core.wire.limits import Limits, LogThrottle, RateLimiter

SMALL = Limits(
    frame_bytes=1000,
    body_bytes=100,
    frames=2,
    in_flight=3,
    held_bytes=250,
    per_s=10,
    burst=5,
    queued_in=10,
    queued_out=10,
)


def test_what_is_too_large_or_has_too_many_arrays_is_malformed() -> None:
    limiter = RateLimiter(SMALL)
    with pytest.raises(MalformedMessage, match="101 bytes; at most 100"):
        limiter.admit(b"a", 101, 0, 0, 0.0)
    with pytest.raises(MalformedMessage, match="3 arrays"):
        limiter.admit(b"a", 1, 0, 3, 0.0)


def test_requests_in_hand_are_counted_a_peer() -> None:
    limiter = RateLimiter(SMALL)
    for _ in range(3):
        limiter.admit(b"a", 1, 0, 0, 0.0)
    with pytest.raises(Overloaded, match="3 requests"):
        limiter.admit(b"a", 1, 0, 0, 0.0)
    limiter.admit(b"b", 1, 0, 0, 0.0)
    limiter.done(b"a", 1)
    limiter.admit(b"a", 1, 0, 0, 0.0)


def test_bytes_in_hand_are_counted_over_all_peers() -> None:
    limiter = RateLimiter(SMALL)
    limiter.admit(b"a", 50, 150, 1, 0.0)
    with pytest.raises(Overloaded, match="MiB of requests"):
        limiter.admit(b"b", 60, 0, 0, 0.0)
    limiter.done(b"a", 200)
    limiter.admit(b"b", 60, 0, 0, 0.0)


def test_who_asks_too_often_has_to_wait() -> None:
    limiter = RateLimiter(SMALL)
    for _ in range(5):
        limiter.admit(b"a", 1, 0, 0, 0.0)
        limiter.done(b"a", 1)
    with pytest.raises(Overloaded, match="10 messages per second"):
        limiter.admit(b"a", 1, 0, 0, 0.05)
    limiter.admit(b"a", 1, 0, 0, 0.2)


def test_who_sends_nonsense_is_not_listened_to_for_a_while() -> None:
    limiter = RateLimiter(SMALL)
    ignored = [limiter.penalize(b"a", 0.01 * number) for number in range(limits.BAD_MESSAGES + 1)]
    assert ignored == [False] * limits.BAD_MESSAGES + [True]
    assert limiter.ignores(b"a", 2.0)
    assert not limiter.ignores(b"b", 2.0)
    assert not limiter.ignores(b"a", 1.01 + limits.IGNORE_S)


def test_rare_nonsense_is_forgiven() -> None:
    limiter = RateLimiter(SMALL)
    for number in range(10 * limits.BAD_MESSAGES):
        assert not limiter.penalize(b"a", number * 2 * limits.BAD_WINDOW_S / limits.BAD_MESSAGES)


def test_however_many_peers_come_no_more_are_remembered() -> None:
    limiter, draw = RateLimiter(SMALL), random.Random(0)
    for number in range(3 * limits.MAX_PEERS):
        peer = draw.randbytes(5)
        limiter.admit(peer, 1, 0, 0, number / 1000)
        limiter.penalize(peer, number / 1000)
        limiter.done(peer, 1)
    assert len(limiter) == limits.MAX_PEERS
    limiter.done(b"never seen", 0)


def test_of_a_flood_of_lines_a_few_are_written_and_the_rest_counted() -> None:
    throttle = LogThrottle(lines=3, window_s=10)
    written = [throttle.permit(0.001 * number) for number in range(1000)]
    assert [line for line in written if line is not None] == ["", "", ""]
    assert throttle.permit(11.0) == " (997 similar lines dropped before)"
    assert throttle.permit(30.0) == ""


def test_every_server_of_a_run_has_limits_of_its_own() -> None:
    for receiver in (messages.ToBroker, messages.ToStore, messages.ToWeights):
        assert limits.limits_of(receiver) is not limits.OTHER
    assert limits.limits_of(messages.ToReward) is limits.OTHER
