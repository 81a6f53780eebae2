from __future__ import annotations

import threading

import pytest

from rhymed.core.service.stopwatch import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_belongs_to_one_activity() -> None:
    clock = Clock()
    watch = Stopwatch("idle", clock)
    clock.now += 2
    watch.enter("decode")
    clock.now += 3
    assert watch.read() == {"idle": 2, "decode": 3}, "the present one counts up to now"
    watch.enter("decode")
    clock.now += 1
    watch.enter("idle")
    assert watch.read() == {"idle": 2, "decode": 4}


def test_blocks_may_overlap_and_the_newest_counts() -> None:
    clock = Clock()
    watch = Stopwatch("wait", clock)
    save, load = watch.during("checkpoint"), watch.during("load")
    save.__enter__()
    clock.now += 1
    load.__enter__()
    clock.now += 2
    save.__exit__(None, None, None)
    clock.now += 4
    watch.enter("idle")
    clock.now += 8
    load.__exit__(None, None, None)
    clock.now += 16
    assert watch.read() == {"wait": 0, "checkpoint": 1, "load": 14, "idle": 16}


def test_a_block_that_fails_has_ended() -> None:
    clock = Clock()
    watch = Stopwatch("wait", clock)

    @watch.during("train")
    def fail() -> None:
        clock.now += 1
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    clock.now += 2
    assert watch.read() == {"train": 1, "wait": 2}


def test_threads_lose_nothing_between_them() -> None:
    ticks = iter(range(1_000_000))
    watch = Stopwatch("idle", lambda: float(next(ticks)))

    def work(name: str) -> None:
        for _ in range(500):
            with watch.during(name):
                watch.read()

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reported = watch.read()
    assert sum(reported.values()) == next(ticks) - 1
    assert all(reported[f"thread {number}"] > 0 for number in range(4))
