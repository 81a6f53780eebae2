from __future__ import annotations

import random

import pytest

from rhymed.core.errors import EngineError
from rhymed.core.service.stopwatch import PREFIX
from rhymed_workers.rollout.weights import Phase, Timesheet


class Engine:
    """A clock and an engine."""

    def __init__(self) -> None:
        self.now = 50.0
        self.busy: dict[str, float] = {}
        self.sheet = Timesheet(clock=lambda: self.now)

    def spend(self, seconds: float, **busy: float) -> None:
        self.now += seconds
        for name, part in busy.items():
            self.busy[name] = self.busy.get(name, 0.0) + part

    def seconds(self) -> dict[str, float]:
        return {name.removeprefix(PREFIX): seconds for name, seconds in self.sheet.stats().items() if seconds}


def test_what_the_engine_leaves_is_idle() -> None:
    engine = Engine()
    engine.spend(2)
    assert engine.seconds() == {"idle": 2}, "there is no engine yet"
    engine.sheet.engine_seconds = lambda: engine.busy
    engine.spend(3, decode=1.5, draft=0.5)
    assert engine.seconds() == {"decode": 1.5, "draft": 0.5, "idle": 3}


def test_an_update_is_as_the_worker_sees_it() -> None:
    engine = Engine()
    engine.sheet.engine_seconds = lambda: engine.busy
    engine.spend(1, decode=1)
    with engine.sheet.during("fetching"):
        engine.spend(2, decode=1.5)
        assert engine.seconds() == {"decode": 2.5, "update": 0.5}
    with engine.sheet.during("loading"):
        engine.spend(4, decode=4)
    engine.spend(1, prefill=1)
    assert engine.seconds() == {"decode": 2.5, "update": 4.5, "prefill": 1}


def test_a_load_that_fails_has_ended() -> None:
    engine = Engine()

    def fail() -> None:
        engine.spend(1)
        raise EngineError("the engine died")

    phases: tuple[Phase, ...] = ("fetching", "loading")
    for phase in phases:
        with pytest.raises(EngineError), engine.sheet.during(phase):
            fail()
    engine.spend(5)
    assert engine.seconds() == {"update": 2, "idle": 5}


def test_the_sum_is_the_time_and_nothing_shrinks_whatever_the_engine_tells() -> None:
    engine, choose = Engine(), random.Random(3)
    engine.sheet.engine_seconds = lambda: engine.busy
    before: dict[str, float] = {}
    for _ in range(300):
        engine.spend(choose.random(), **{choose.choice(["decode", "verify"]): choose.uniform(-0.2, 1.5)})
        seconds = engine.seconds()
        assert sum(seconds.values()) == pytest.approx(engine.now - 50.0)
        assert all(seconds[name] >= earlier for name, earlier in before.items())
        before = seconds
