"""How far weights are apart: what is no number is never near."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rhymed.records.history.compare.runs import WeightDifference, weight_difference


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
