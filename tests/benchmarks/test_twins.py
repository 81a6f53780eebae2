"""Two runs that should be equal: the first step that differs is named, and how far their weights are apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.twins import NEAR, WeightDifference, compare_runs, weight_difference
from tests.records.history.compare.test_audit import ONE, STEPS, Run, calm

__all__ = ["calm"]


def test_two_runs_that_trained_the_same_are_equal_to_the_bit(calm: Path, tmp_path: Path) -> None:
    found = compare_runs(calm, Run(tmp_path / "killed").write())
    assert found.wrong == []
    assert (found.both, found.equal) == (STEPS, STEPS)
    assert "the same, bit for bit" in found.weights


def test_the_first_step_that_differs_is_named(calm: Path, tmp_path: Path) -> None:
    found = compare_runs(calm, Run(tmp_path / "killed", drop={ONE: "lost"}).write())
    assert "step 3, the first that differs: 6 samples" in found.wrong[0]
    assert (found.both, found.equal) == (STEPS, 2)
    assert any(f"the weights after {STEPS} steps differ: by " in fault for fault in found.wrong)


def test_a_run_that_did_not_come_as_far_is_not_equal(calm: Path, tmp_path: Path) -> None:
    found = compare_runs(calm, Run(tmp_path / "killed", checkpoint_at=4).write())
    assert "calm has 6 steps in its newest checkpoint, killed has 4" in found.wrong
    assert (found.both, found.equal) == (4, 4)


def weights(folder: Path, *values: float, name: str = "model.safetensors") -> list[Path]:
    folder.mkdir()
    save_file({"w": np.array(values, np.float32)}, folder / name)
    return [folder / name]


def test_the_largest_difference_and_how_many_differ(tmp_path: Path) -> None:
    found = weight_difference(weights(tmp_path / "a", 1, 2, 3), weights(tmp_path / "b", 1, 2.5, 2))
    assert found == WeightDifference(1.0, 2, 3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_never_near(tmp_path: Path, wrong: float) -> None:
    assert weight_difference(weights(tmp_path / "a", 1, 2), weights(tmp_path / "b", 1, wrong)).most == math.inf
    assert weight_difference(weights(tmp_path / "c", wrong, 1), weights(tmp_path / "d", wrong, 2)).most == math.inf


def test_other_tensors_or_other_files_are_far_apart(tmp_path: Path) -> None:
    one = weights(tmp_path / "a", 1, 2)
    assert weight_difference(one, weights(tmp_path / "b", 1, 2, 3)).most == math.inf
    assert weight_difference(one, []).most == math.inf
    assert weight_difference(one, weights(tmp_path / "c", 1, 2, name="other.safetensors")).most == math.inf


@pytest.mark.parametrize(("by", "equal"), [(3e-7, True), (3e-4, False)])
def test_weights_of_a_model_may_differ_in_their_last_bits_only(tmp_path: Path, by: float, equal: bool) -> None:
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    for file in (first, second):
        file.parent.mkdir()
    save_file({"w": np.array([1.0, 2.0, 3.0], np.float32), "v": np.zeros(2, np.float32)}, first)
    save_file({"w": np.array([1.0, 2.0, 3.0], np.float32), "v": np.array([0.0, by], np.float32)}, second)
    found = weight_difference([first], [second])
    assert (found.differing, found.numbers) == (1, 5)
    assert found.most == pytest.approx(by)
    assert (found.most <= NEAR) == equal
