"""A run with tools under fire: what its tools were asked to do, and what its samples say. And the judge itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from rhymed.core.messages import Call
from rhymed_store.browse import Browse
from rhymed_workers.environment.actor import INTERRUPTED
from tests.stress import agents, calls, programs, siege


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_whatever_dies_no_call_is_made_twice_that_must_not_be(tmp_path: Path) -> None:
    found = agents.run(True, kills=20, seed=5, out=tmp_path / "run")
    assert found["wrong"] == [], found
    assert found["kills"] == 20
    assert found["dropped"] == 0
    assert {"environment", "tool", "rollout", "broker", "store"} <= found["kinds"].keys()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_whatever_dies_the_next_program_of_a_sample_is_answered_as_the_one_before(tmp_path: Path) -> None:
    found = agents.run(True, kills=8, seed=5, out=tmp_path / "run", of_programs=True)
    assert found["wrong"] == [], found
    assert found["kills"] >= 8  # more, until a program that had been answered was started again
    assert found["dropped"] == 0
    assert found["again"]


def test_an_answer_that_differs_from_the_one_before_is_found(tmp_path: Path) -> None:
    lines = [["0-ab-1", 0, "asked", "1 2"], ["0-ab-1", 0, "asked", "1 2"], ["0-ab-1", 1, "asked", "3"]]
    lines.append(["0-ab-1", 1, "asked", "4"])
    (tmp_path / "program.log").write_text("".join(json.dumps(line) + "\n" for line in lines))

    class Nothing:
        def ids(self) -> list[str]:
            return []

    found = programs.judge(tmp_path, cast("Browse", Nothing()))
    assert found.again == 2
    assert found.wrong == ["call 1 of 0-ab-1 was answered in 2 ways", "no program was answered"]


@pytest.mark.parametrize(
    ("call", "result", "logged", "fault"),
    [
        (Call(name="spend"), "ab", ["ab"], ""),
        (Call(name="spend"), "", ["ab"], ""),
        (Call(name="spend", error=INTERRUPTED), f'{{"error": "{INTERRUPTED}"}}', [], ""),
        (Call(name="spend", error=INTERRUPTED), "ab", ["ab"], "was interrupted, but ab was read"),
        (Call(name="spend"), "cd", ["ab"], "'cd' was read"),
        (Call(name="spend"), "ab", [], "was not made"),
        (Call(name="look"), "ab", ["ab"], "recorded as one of look"),
        (Call(name="spend", error="ValueError"), "ab", ["ab"], "failed: ValueError"),
    ],
)
def test_a_result_that_is_not_the_recorded_one_is_found(
    call: Call, result: str, logged: Sequence[str], fault: str
) -> None:
    found = calls._fault("spend", "key", call, result, logged)
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_siege_of_tools_overlap_and_dynamic_sampling_ends_like_a_calm_run(tmp_path: Path) -> None:
    found = siege.run(True, minutes=0.6, every=4.0, seed=3, out=tmp_path / "runs")
    assert found["wrong"] == [], found
    assert found["kills"] >= 5
    assert found["filtered"] > 0
    assert "the same, bit for bit" in found["audit"]
