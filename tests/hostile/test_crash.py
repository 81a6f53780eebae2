"""Forty kills under load; `python -m tests.hostile.crash` does thousands."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.crash import cut


def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path) -> None:
    tally = cut(tmp_path, cuts=40, seed=7)
    assert tally.lost == []
    assert tally.kills == 40
    assert tally.samples > 100
    assert tally.compared > tally.samples
