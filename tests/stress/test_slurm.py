"""A run on a real Slurm cluster of this machine loses two elements of its array; `make stress-slurm` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import needs
from tests.stress import slurm
from tests.stress.cluster import missing_tools

pytestmark = [
    needs("fsspec"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools()),
    pytest.mark.timeout(600),
]


@pytest.mark.thorough
def test_an_element_that_is_cancelled_and_one_that_is_requeued_change_no_bit_of_the_run(tmp_path: Path) -> None:
    result = slurm.run(quick=True, steps=9, out=tmp_path, faults=slurm.FAULTS[:2])
    assert result["wrong"] == []
    assert (result["steps"], result["samples"]) == (9, 9 * 16)
    assert result["audit"]
