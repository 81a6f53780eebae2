"""Some kills under load; `python -m tests.hostile.crash` does thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.crash import cut


@pytest.mark.parametrize("cuts", [12, pytest.param(40, marks=pytest.mark.thorough)])
def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path, cuts: int) -> None:
    tally = cut(tmp_path, cuts=cuts, seed=7)
    assert tally.lost == []
    assert tally.kills == cuts
    assert tally.samples > 2 * cuts
    assert tally.compared > tally.samples
