"""What is remembered of snapshots: bounded, and right when things begin anew."""

from __future__ import annotations

import msgspec

from rhymed.show.top.state import LENGTH, REWARD, STEPS, Connection, History, Shown
from tests.show.top.sample_run import snapshot


def test_it_is_bounded() -> None:
    history = History()
    history.add_steps({"step": step, "reward/mean": 1.0} for step in range(3 * STEPS))
    assert len(history.series(REWARD)) == STEPS
    for _ in range(1000):
        history.add(snapshot())
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
