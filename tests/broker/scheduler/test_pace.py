"""How fast each engine is, by the progress of its samples."""

from __future__ import annotations

import pytest

from rhymed_broker.scheduler.pace import Pace


def seconds(running: int, times: float = 1.0) -> float:
    """Per token: 10 ms, and 0.1 ms for each sample."""
    return times * (0.010 + 0.0001 * running)


def observe(pace: Pace, worker: str, running: int, times: float = 1.0, beats: int = 1) -> None:
    for _ in range(beats):
        pace.observe(worker, running, [round(10 / seconds(running, times))] * running, 10.0)


def test_before_anything_was_seen_all_engines_are_equal() -> None:
    pace = Pace()
    assert not pace.known
    assert pace("a", 1) == pace("b", 32) == 1.0
    assert pace.slower("a") == 1.0


def test_a_slow_engine_is_recognized_and_known_at_loads_that_it_never_had() -> None:
    pace = Pace()
    for _ in range(60):
        for worker in "abc":
            observe(pace, worker, 32)
        observe(pace, "slow", 32, times=10)
    observe(pace, "a", 4, beats=20)
    assert pace("a", 32) == pytest.approx(seconds(32), rel=0.02)
    assert pace("slow", 32) == pytest.approx(seconds(32, 10), rel=0.02)
    assert pace("slow", 4) == pytest.approx(seconds(4, 10), rel=0.05)
    assert pace.slower("slow") == pytest.approx(10, rel=0.02)
    assert pace.slower("a") == pace.slower("b") == 1.0


def test_an_engine_that_slows_down_is_recognized_within_a_few_heartbeats() -> None:
    pace = Pace()
    for _ in range(20):
        for worker in "abcd":
            observe(pace, worker, 32)
    for _ in range(8):
        for worker in "abc":
            observe(pace, worker, 32)
        observe(pace, "d", 32, times=5)
    assert pace.slower("d") > 4
    assert pace.slower("a") == 1.0


def test_a_stall_of_some_samples_is_no_slow_engine() -> None:
    """Samples that just arrived have their earlier tokens verified first."""
    pace = Pace()
    pace.observe("a", 5, [500, 500, 500, 20, 10], 5.0)
    assert pace("a", 5) == pytest.approx(0.01)
    pace.observe("a", 5, [3, 3, 3], 5.0)
    assert pace("a", 5) == pytest.approx(0.01), "too few tokens to say anything"


def test_fewer_samples_are_never_slower() -> None:
    pace = Pace()
    observe(pace, "a", 32, beats=10)
    observe(pace, "b", 4, times=3, beats=10)
    assert all(pace("a", count) <= pace("a", count + 1) for count in range(1, 40))


def test_a_worker_that_left_is_forgotten() -> None:
    pace = Pace()
    for worker, times in (("a", 1.0), ("b", 1.0), ("slow", 10.0)):
        observe(pace, worker, 32, times, beats=20)
    pace.forget("slow")
    assert pace.slower("slow") == 1.0
