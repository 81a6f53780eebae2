from __future__ import annotations

import random

import pytest

from rhymed.errors import EngineError
from rhymed.service.activities import PREFIX
from rhymed_workers.rollout.activity import Phase, Timesheet


class Desk:
    """A clock and an engine."""

    def __init__(self) -> None:
        self.now = 50.0
        self.engine: dict[str, float] = {}
        self.sheet = Timesheet(clock=lambda: self.now)

    def spend(self, seconds: float, **busy: float) -> None:
        self.now += seconds
        for name, part in busy.items():
            self.engine[name] = self.engine.get(name, 0.0) + part

    def told(self) -> dict[str, float]:
        return {name.removeprefix(PREFIX): told for name, told in self.sheet.stats().items() if told}


def test_what_the_engine_leaves_is_idle() -> None:
    desk = Desk()
    desk.spend(2)
    assert desk.told() == {"idle": 2}, "there is no engine yet"
    desk.sheet.engine_seconds = lambda: desk.engine
    desk.spend(3, decode=1.5, draft=0.5)
    assert desk.told() == {"decode": 1.5, "draft": 0.5, "idle": 3}


def test_an_update_is_as_the_worker_sees_it() -> None:
    desk = Desk()
    desk.sheet.engine_seconds = lambda: desk.engine
    desk.spend(1, decode=1)
    with desk.sheet.during("fetching"):
        desk.spend(2, decode=1.5)
        assert desk.told() == {"decode": 2.5, "update": 0.5}
    with desk.sheet.during("loading"):
        desk.spend(4, decode=4)
    desk.spend(1, prefill=1)
    assert desk.told() == {"decode": 2.5, "update": 4.5, "prefill": 1}


def test_a_load_that_fails_has_ended() -> None:
    desk = Desk()

    def fail() -> None:
        desk.spend(1)
        raise EngineError("the engine died")

    phases: tuple[Phase, ...] = ("fetching", "loading")
    for phase in phases:
        with pytest.raises(EngineError), desk.sheet.during(phase):
            fail()
    desk.spend(5)
    assert desk.told() == {"update": 2, "idle": 5}


def test_the_sum_is_the_time_and_nothing_shrinks_whatever_the_engine_tells() -> None:
    desk, choose = Desk(), random.Random(3)
    desk.sheet.engine_seconds = lambda: desk.engine
    before: dict[str, float] = {}
    for _ in range(300):
        desk.spend(choose.random(), **{choose.choice(["decode", "verify"]): choose.uniform(-0.2, 1.5)})
        told = desk.told()
        assert sum(told.values()) == pytest.approx(desk.now - 50.0)
        assert all(told[name] >= seconds for name, seconds in before.items())
        before = told
