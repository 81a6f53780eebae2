"""The table of an engine's life: every order and report has an outcome wherever it can arrive."""

from __future__ import annotations

import random
from typing import get_args

from rhymed_broker.ledger.engine import NEXT, PATIENCE_S, Engine, Event, State


def test_the_table_has_an_outcome_for_whatever_can_arrive() -> None:
    """An engine that sleeps is not asked to sleep, has no order to give up, and another version needs an order."""
    impossible = {("asleep", "sleep"), ("asleep", "given up"), ("awake", "given up")} | {
        (state, "loaded another") for state in ("awake", "falling asleep", "asleep")
    }
    assert set(NEXT) == {(state, event) for state in get_args(State) for event in get_args(Event)} - impossible


def test_any_order_of_orders_and_reports_is_taken() -> None:
    """Reports may be late, repeated, or of a worker that does what it was not asked for."""
    for seed in range(300):
        chance = random.Random(seed)
        engine = Engine(asleep=chance.random() < 0.5)
        for now in range(30):
            match chance.randrange(6):
                case 0:
                    engine.load(chance.randrange(3), now)
                case 1 if engine.state != "asleep":
                    engine.sleep(now)
                case 2:
                    engine.give_up()
                case 3:
                    engine.loaded(chance.randrange(3), now)
                case 4:
                    engine.slept()
                case _:
                    engine.weights_gone()
            assert (engine.state == "loading") <= (engine.target is not None)
            assert engine.target is None or engine.state in ("loading", "waking")


def test_an_engine_that_was_to_sleep_and_is_asked_to_load_wakes_after_its_late_report() -> None:
    engine = Engine(asleep=False)
    assert engine.sleep(1.0)
    assert not engine.sleep(PATIENCE_S), "it has the order"
    assert engine.sleep(2.0 + PATIENCE_S), "it has not followed"
    engine.load(4, 500.0)
    assert engine.state == "loading"
    engine.slept()
    assert engine.state == "waking", "the trainer must not take its memory"
    engine.loaded(4, 510.0)
    assert (engine.state, engine.target, engine.woken_at) == ("awake", None, 510.0)


def test_an_older_version_does_not_end_the_wait_for_the_newest() -> None:
    engine = Engine(asleep=True)
    engine.load(3, 0.0)
    engine.load(4, 1.0)
    engine.loaded(3, 2.0)
    assert (engine.state, engine.target) == ("loading", 4)
    assert engine.late(1.0 + PATIENCE_S + 1)
    engine.give_up()
    assert (engine.state, engine.target) == ("awake", None)
