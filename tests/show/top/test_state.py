"""What is remembered of snapshots: bounded, and right when things begin anew."""

from __future__ import annotations

import msgspec
import pytest

from rhymed.core.messages import WorkerRow
from rhymed.show.top.state import LENGTH, REWARD, STEPS, WINDOW, Connection, History, Shown
from tests.show.top.sample_run import rollout, snapshot


def reported(history: History, uptime_s: float, *rows: WorkerRow) -> None:
    history.add(msgspec.structs.replace(snapshot(uptime_s=uptime_s), workers=list(rows)))


def spent(number: int = 0, **seconds: float) -> WorkerRow:
    return rollout(number, stats={f"seconds/{name}": value for name, value in seconds.items()})


def test_idle_is_of_the_last_minute() -> None:
    history = History()
    for look in range(WINDOW + 8):
        busy = min(look, 7) * 5.0
        reported(history, look * 5.0, spent(verify=busy, idle=look * 5.0 - busy))
        if look == 4:
            assert history.idle("rollout-0") == 0.0
    assert history.idle("rollout-0") == pytest.approx(1.0), "it was busy only before the last minute"


def test_a_new_process_begins_anew() -> None:
    history = History()
    reported(history, 0, spent(verify=1000, idle=0))
    reported(history, 5, spent(verify=1005, idle=0))
    reported(history, 10, spent(verify=0, idle=1))
    assert history.idle("rollout-0") is None
    reported(history, 15, spent(verify=0, idle=6))
    assert history.idle("rollout-0") == 1.0


def test_who_does_not_tell_is_not_idle() -> None:
    history = History()
    for second in range(0, 30, 5):
        reported(history, second, rollout(0, stats={}))
    assert history.idle("rollout-0") is None
    assert history.idle("nobody") is None


def test_a_broker_that_starts_again_has_another_clock() -> None:
    history = History()
    reported(history, 5000, spent(verify=10, idle=0))
    reported(history, 1, spent(verify=10, idle=4))
    assert history.idle("rollout-0") == 1.0


def test_it_is_bounded_and_forgets_who_left() -> None:
    history = History()
    history.add_steps({"step": step, "reward/mean": 1.0} for step in range(3 * STEPS))
    assert len(history.series(REWARD)) == STEPS
    for second in range(1000):
        reported(history, second, spent(second // 500, idle=second))
    assert len(history._seconds) == 1
    assert len(history.rates) < 300


def test_a_step_that_is_trained_again_has_one_value() -> None:
    history = History()
    history.add_steps(
        [{"step": 3, "reward/mean": 0.1, "response_length/mean": None}, {"step": 1, "reward/mean": 0.5}]
    )
    queues = msgspec.structs.replace(snapshot(), step=4, metrics={"reward/mean": 0.9, "response_length/mean": 7.0})
    history.add(queues)
    assert history.series(REWARD) == [0.5, 0.9]
    assert history.series(LENGTH) == [7.0]


def test_what_is_not_finite_is_left_out() -> None:
    history = History()
    history.add(msgspec.structs.replace(snapshot(), metrics={"reward/mean": float("nan")}))
    assert history.series(REWARD) == []


def test_how_it_stands_with_the_broker() -> None:
    """Silence counts from the last answer, the end from when it was seen; a finished run stays finished."""
    seen = Shown()
    seen.unanswered(3.0)
    assert seen.connection.state == "waiting"
    seen.answered(snapshot(), 5.0, None)
    seen.unanswered(8.0)
    assert seen.connection == Connection("silent", 5.0)
    for now in (9.0, 10.0):
        seen.unanswered(now, ended=True)
        assert seen.connection == Connection("ended", 9.0)
    seen.answered(msgspec.structs.replace(snapshot(), finished=True), 11.0, None)
    seen.unanswered(12.0, ended=True)
    assert seen.connection == Connection("finished", 11.0)
