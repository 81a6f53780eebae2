from __future__ import annotations

import pytest

from benchmarks.agents.measure import Turn, costs, idle


def test_a_slot_is_idle_only_while_a_turn_waits_that_could_have_it() -> None:
    """Two slots, both free for the second in which one turn waits; then one waits while both are taken."""
    turns = [
        Turn(ready=0.0, taken=1.0, freed=5.0),
        Turn(ready=1.0, taken=1.0, freed=3.0),
        Turn(ready=2.0, taken=3.0, freed=4.0),
    ]
    found = idle(turns, slots=2)
    assert found.waiting_s == pytest.approx(2.0)
    assert found.share == pytest.approx(1.0 / 4.0)
    assert found.empty == pytest.approx(2.0 / 4.0)
    assert found.total_s == 5.0


def test_nothing_is_idle_where_nothing_waits() -> None:
    assert idle([Turn(ready=0.0, taken=0.0, freed=1.0), Turn(ready=9.0, taken=9.0, freed=10.0)], 4).share == 0


def test_what_a_turn_costs() -> None:
    sample = [
        Turn(ready=0.0, asked=0.5, taken=0.6, freed=1.0, called=1.25),
        Turn(ready=2.0, asked=2.125, taken=2.225, freed=3.0),
    ]
    found = costs([sample])
    assert found["tool_to_engine_ms_median"] == pytest.approx(125)  # a first turn has no tool before it
    assert found["engine_to_tool_ms_p99"] == pytest.approx(250)
    assert found["wait_for_slot_ms_median"] == pytest.approx(100)
