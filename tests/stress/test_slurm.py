"""A run on a real Slurm cluster of this machine loses two elements of its array; `make stress-slurm` does more."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.packages import needs
from tests.stress import slurm
from tests.stress.cluster import missing_tools

pytestmark = [
    needs("fsspec"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools()),
]


@pytest.mark.thorough
def test_an_element_that_is_cancelled_and_one_that_is_requeued_change_no_bit_of_the_run() -> None:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # a short path, as munge has a socket there
        result = slurm.run(quick=True, steps=12, out=Path(folder), faults=slurm.FAULTS[:3])
    assert result["wrong"] == []
    assert (result["steps"], result["samples"]) == (12, 12 * 16)
    assert "bit for bit" in result["audit"]
