from __future__ import annotations

import pytest

from benchmarks.agents import endpoint


@pytest.mark.thorough
def test_every_call_is_measured() -> None:
    found = endpoint.run(3, 2)
    assert found["calls"] == 6
    for name in ("request_to_stored_ms", "turn_to_answer_ms", "store_ms", "both_ms"):
        assert 0 < found[f"{name}_median"] <= found[f"{name}_p99"]
    assert found["cpu_ms"] > 0
