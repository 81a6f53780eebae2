"""Whole runs whose folder is not as they left it: without its store, copied, renamed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stress.run import LiveRun, Shape

DEADLINE_S = 600.0


def rhymed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def measured(folder: Path) -> set[int]:
    """Steps with a row of metrics."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return {json.loads(line)["step"] for line in lines if line.endswith("\n")}


def has_four_steps(folder: Path) -> bool:
    return (folder / "checkpoints" / "step-000004").exists() and 3 in measured(folder)


@pytest.mark.thorough
@pytest.mark.timeout(2500)
def test_a_run_that_lost_its_store_continues_only_when_asked_to(tmp_path: Path) -> None:
    shape = Shape(steps=16, rollout=1, reward=1, settings={"trainer": {"checkpoint_every": 2}})
    with LiveRun(shape.write(tmp_path, "lost")) as run:
        folder, until = run.where.folder, time.monotonic() + DEADLINE_S
        # The row of a step may be lost if its broker is killed between checkpoint and row.
        while not has_four_steps(folder) and run.status is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        run.kill_all()
    file = folder / "store" / "data.mdb"
    file.write_bytes(b"")

    refused = rhymed("run", "--plain", "--resume", folder)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "data.mdb is missing or empty, but this run has worked, and has checkpoints up to" in refused.stderr
    assert f"rhymed run --resume {folder} --without-history" in refused.stderr
    assert file.stat().st_size == 0
    assert "Traceback" not in refused.stderr

    resumed = rhymed("run", "--plain", "--resume", folder, "--without-history")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "with an empty history; the old store is" in resumed.stdout
    assert measured(folder) == set(range(16))
    audited = rhymed("history", "audit", folder)
    assert audited.returncode == 0, audited.stdout
    assert "not in the store, which begins later: " in audited.stdout
    again = rhymed("run", "--plain", "--resume", folder, "-o", "trainer.steps=18")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.thorough
@pytest.mark.timeout(2500)
def test_a_copy_of_a_run_goes_on_by_itself_and_so_does_a_renamed_run(tmp_path: Path) -> None:
    shape = Shape(steps=2, rollout=1, reward=1, settings={"trainer": {"checkpoint_every": 1}})
    done = rhymed("run", "--plain", shape.write(tmp_path, "47"))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "47"
    shutil.copytree(folder, copy := tmp_path / "47-copy")
    resumed = rhymed("run", "--plain", "--resume", copy, "-o", "trainer.steps=4")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert (measured(folder), measured(copy)) == ({0, 1}, {0, 1, 2, 3})
    moved = folder.rename(tmp_path / "46")
    again = rhymed("run", "--plain", "--resume", moved, "-o", "trainer.steps=3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert measured(moved) == {0, 1, 2}
    for one in (copy, moved):
        audited = rhymed("history", "audit", one)
        assert audited.returncode == 0, audited.stdout
