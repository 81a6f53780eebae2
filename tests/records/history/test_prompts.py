"""Prompts ranked by how predictable they are, from responses and from a store of many prompts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, Group

from rhymed.core.messages import EVAL, SampleId, SampleInfo
from rhymed.records.history.prompts import PromptRow, by_epoch, predictions, prompt_row, render
from rhymed_store.browse import Response
from tests.records.history.folders import APPLES, PEARS, two_epochs


def response(step: int, tokens: list[int], reward: float | None = None) -> Response:
    info = SampleInfo(
        id=SampleId(step, "a", 0),
        prompt_length=1,
        length=len(tokens),
        finish_reason="stop",
        versions=[],
        reward=reward,
    )
    return Response(info, "scored", "", np.asarray(tokens, np.uint32), np.zeros(1, np.uint32))


def told(*responses: Response) -> PromptRow | None:
    found = by_epoch(responses)
    return prompt_row("a", found, predictions(found))


def test_a_prompt_has_a_share_for_every_epoch_that_has_one_before() -> None:
    row = told(response(0, [1, 2, 3, 4]), response(3, [1, 2, 3, 9], 0.5), response(8, [5, 2, 3, 9, 9, 9], 1.0))
    assert row is not None
    assert (row.epochs, row.length_mean, row.reward_mean) == (3, 6.0, 1.0)
    assert row.predicted == {1: 0.75, 2: pytest.approx(2 / 6)}  # of 5 2 3 9 9 9: 3 and the first 9
    assert row.last == row.predicted[2]


def test_imported_history_is_before_the_first_epoch_and_evaluations_are_left_out() -> None:
    row = told(response(-1, [1, 2]), response(4, [1, 2], 0.0), response(EVAL, [1, 2]), response(EVAL + 1, [1, 2]))
    assert row == PromptRow("a", epochs=1, length_mean=2.0, reward_mean=0.0, predicted={0: 1.0})
    assert told(response(EVAL, [1, 2]), response(EVAL + 1, [1, 2])) is None
    assert told(response(0, [1, 2]), response(1, [])) is None  # nothing was there to be predicted
    assert told(response(0, [1])) is None


def shown(count: int, most: int, epochs: int = 2) -> list[list[str]]:
    """The words of every line; prompt n is predicted to n %."""
    rows = [PromptRow(f"{n:016x}", epochs, 9.5, None, {e: n / 100 for e in range(1, epochs)}) for n in range(count)]
    console = Console(file=io.StringIO(), width=80)
    console.print(Group(*render(rows, most)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-2:-1] == [f"predicted   epoch by epoch; {count} prompt{'s' * (count > 1)} ranked by the last one"]
    return [line.split() for line in lines if line.strip()]


def test_the_ends_of_the_ranking_are_shown_the_extreme_one_first() -> None:
    lines = shown(20, 2)
    assert [line[0] for line in lines if line[0].startswith("0000")] == [f"{n:016x}" for n in (19, 18, 0, 1)]
    assert [line[:2] for line in lines if line[1:2] == ["predictable"]] == [
        ["most", "predictable"],
        ["least", "predictable"],
    ]
    assert any(line[1:] == ["2", "9.5", "-", "19%"] for line in lines)


def test_few_prompts_are_one_table_and_none_is_no_table() -> None:
    lines = shown(4, 2)
    assert [line[0] for line in lines if line[0].startswith("0000")] == [f"{n:016x}" for n in (3, 2, 1, 0)]
    assert render([]) == []


def test_many_epochs_are_cut_at_the_front() -> None:
    (line,) = [line for line in shown(1, 2, epochs=12) if line[0].startswith("0000")]
    assert line[4:] == ["…", *["0%"] * 6]


def test_the_command_tells_of_the_prompts(run: Path, make_run, rhymed) -> None:
    _, out, _ = rhymed("stats", "--run", run)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert (rows[APPLES], rows[PEARS]) == (["2", "10.5", "1.000", "90%"], ["2", "20.5", "1.000", "95%"])
    fresh = make_run("fresh", [sample for sample in two_epochs() if sample[0] < 2])
    _, out, _ = rhymed("stats", "--run", fresh)
    assert APPLES not in out
