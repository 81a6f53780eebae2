"""`python -m benchmarks whole`: ratios within a round, and the simulated part."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.whole.measured import ratios, table
from benchmarks.whole.run import run
from rhymed.core.errors import ConfigError


def row(variant: str, number: int, seconds: float) -> dict[str, object]:
    return {"variant": variant, "round": number, "step_s": seconds, "run": f"{variant}-{number}"}


def test_runs_are_compared_with_the_plain_one_of_their_round() -> None:
    rows = [row("plain", 0, 60), row("both", 0, 30), row("both", 1, 50), row("plain", 1, 90), row("both", 2, 1)]
    found = ratios(rows)
    assert found == {"plain": [1, 1], "both": [2, 1.8]}
    assert table(found)[-1] == "| both | 1.90 (1.80-2.00) |"


@pytest.mark.thorough
def test_drafts_and_staleness_are_faster_in_virtual_time(tmp_path: Path) -> None:
    rows = run(True, parts=["simulated"], out=tmp_path)["simulated"]
    times = {row["variant"]: row["makespan_s"] for row in rows}
    assert list(times) == ["plain", "scheduling", "drafts", "both", "overlap", "length", "staleness 1"]
    assert times["staleness 1"] < times["overlap"] < times["both"] < times["scheduling"]
    assert times["drafts"] < times["plain"]
    assert (tmp_path / "whole.json").is_file()


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown: magic; methods: plain"):
        run(True, methods=["magic"], out=tmp_path)
