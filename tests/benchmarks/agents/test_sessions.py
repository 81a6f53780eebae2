"""A small run in real processes: all samples and turns are found again, and their times are in order."""

from __future__ import annotations

import pytest

from benchmarks.agents import sessions


@pytest.mark.thorough
def test_times_of_a_run_are_in_order() -> None:
    found = sessions.run(16, 8, 1, 2, mean_length=8, step_s=0.01, token_s=0.0001)
    assert found["samples"] == 16
    assert found["turns"] == 32
    assert 0 <= found["idle_share"] <= found["empty_share"] <= 1
    assert found["running"] > 0
    for name in ("tool_to_engine_ms", "engine_to_tool_ms", "wait_for_slot_ms"):
        assert 0 <= found[f"{name}_median"] <= found[f"{name}_p99"]
