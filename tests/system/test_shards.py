"""Whole runs with several stores: the samples of a run with one, also where a store is killed and the run resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stress.run import LiveRun, Shape

DEADLINE_S = 240.0
SETTINGS = {"trainer": {"checkpoint_every": 4}, "store": {"map_gib": 0.25}}


def rhymed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def config(folder: Path, name: str, *override: str) -> Path:
    shape = Shape(steps=20, rollout=2, reward=1, settings=SETTINGS, override=override)
    return shape.write(folder, name)


def until_checkpoint(run: LiveRun, step: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while not (run.where.folder / "checkpoints" / f"step-{step:06d}").exists():
        assert run.status is None
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_run_of_two_stores_has_the_samples_of_a_run_of_one_whatever_ends(tmp_path: Path) -> None:
    calm = rhymed("run", "--plain", config(tmp_path, "one"))
    assert calm.returncode == 0, calm.stdout + calm.stderr
    with LiveRun(config(tmp_path, "two", "store.shards=2")) as run:
        folder = run.where.folder
        until_checkpoint(run, 4)
        pids = [part.pid for part in run.parts() if part.name == "store-1"]
        os.kill(pids[0], signal.SIGKILL)
        until_checkpoint(run, 8)
        assert "store-1" not in {part.name for part in run.parts() if part.pid == pids[0]}
        run.kill_all()
    refused = rhymed("run", "--plain", "--resume", folder, "-o", "store.shards=3")
    assert refused.returncode == 2
    assert "are in 2 stores, by prompt: resume it with -o store.shards=2" in refused.stderr

    shutil.move(folder / "store-1", tmp_path / "aside")
    refused = rhymed("run", "--plain", "--resume", folder)
    assert refused.returncode == 2
    assert "store-1/data.mdb is missing or empty, but this run has worked" in refused.stderr
    shutil.move(tmp_path / "aside", folder / "store-1")

    resumed = rhymed("run", "--plain", "--resume", folder)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    audited = rhymed("history", "audit", folder, "--against", tmp_path / "one")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "20 of 20 common steps trained on the same samples" in audited.stdout
    stats = [json.loads(rhymed("history", "stats", tmp_path / name, "--json").stdout) for name in ("one", "two")]
    for name in ("prompts", "prompts_read", "length_mean", "length_max", "reward_mean"):
        assert stats[0][name] == stats[1][name], name

    backup = tmp_path / "copies" / "two"
    assert rhymed("history", "backup", folder, backup).returncode == 0
    verified = rhymed("history", "verify", backup)
    assert (verified.returncode, "320 samples" in verified.stdout) == (0, True), verified.stdout
