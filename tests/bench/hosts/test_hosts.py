from __future__ import annotations

import pytest

from rhymed.bench.hosts import hosts
from rhymed.bench.hosts.network import missing_tools


def test_what_does_not_fit_is_left_out_with_a_sentence() -> None:
    assert not hosts._does_not_fit(1, 0.001)
    assert "left out" in hosts._does_not_fit(8, 1e6)


@pytest.mark.thorough
@pytest.mark.skipif(bool(missing_tools(True)), reason=f"no hosts here: {missing_tools(True)}")
def test_the_trainer_s_line_carries_one_copy() -> None:
    result = hosts.run(True, hosts=(3,), sizes=(0.05,), gbit=1.0)
    assert not result["left_out"]
    assert [(row["hosts"], row["keys"]) for row in result["rows"]] == [(1, False), (3, False), (1, True), (3, True)]
    for row in result["rows"]:
        assert 1.0 < row["whole"]["sent_by_trainer"] < 1.5, row
        assert row["changes"]["sent_by_trainer"] < 0.1, row
        assert row["whole"]["last_s"] > 0.05 / 0.125, "no faster than the line"
