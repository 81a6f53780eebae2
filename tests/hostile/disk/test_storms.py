"""Disks that fail; `python -m tests.hostile.disk --parts storms` does more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.disk import interposed
from tests.hostile.disk.faults import storms_of_run
from tests.hostile.disk.storestorms import storms_of_store

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not interposed.is_possible(), reason="needs gcc")]

WRITE = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for number in range(300):
    try:
        print(os.write(file, b"0123456789"))
    except OSError as error:
        print(error.errno)
"""


def test_writes_fail_and_are_short_as_often_as_asked_for(tmp_path: Path) -> None:
    library, faults = interposed.build(tmp_path), interposed.Faults(tmp_path / "faults", seed=1)
    (tmp_path / "disk").mkdir()
    env = {**os.environ, **interposed.environment(library, tmp_path / "disk", faults=faults.file)}
    faults.set(500_000, "disk/file")

    def written_to(file: Path) -> list[str]:
        file.touch()
        command = [sys.executable, "-c", WRITE, str(file)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()

    assert set(written_to(tmp_path / "disk" / "other")) == {"10"}
    assert set(written_to(tmp_path / "file")) == {"10"}
    written = written_to(tmp_path / "disk" / "file")
    assert set(written) == {"10", "5", "28"}, "whole; a half, or EIO, which is 5, too; ENOSPC"
    assert 90 < written.count("10") < 210
    counts = faults.counts()
    assert min(counts[kind] for kind in interposed.KINDS[:3]) > 20
    assert sum(counts.values()) == 300 - written.count("10")


def test_a_store_on_a_disk_that_fails_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    tally, lost, faults = storms_of_store(tmp_path, interposed.build(tmp_path), storms=6, seed=3)
    assert lost == []
    assert tally.compared > 0
    assert sum(faults.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_a_disk_that_fails_trains_what_it_trains_without_faults(tmp_path: Path) -> None:
    found = storms_of_run(tmp_path, interposed.build(tmp_path), storms=4, steps=25, seed=1, rates=(20_000,))
    assert found.wrong == []
    assert found.count > 0
    assert sum(found.faults.values()) > 0
