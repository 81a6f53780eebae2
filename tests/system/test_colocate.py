"""A whole run whose engines sleep while the trainer trains; worker and trainer are killed in either phase."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.twins import compare_runs
from rhymed.core.run.client import poll
from rhymed.core.run.folder import layout_of_folder
from tests.system.test_loop import NO_MODEL, finish, metrics, started, wait_for, write

__all__ = ["write"]

TURNS = (*NO_MODEL, "-o", "schedule.colocate=true", "-o", "rollout.workers=2", "-o", "trace.train_s=3")
DEADLINE_S = 120


def await_phase(folder: Path, true: Callable[[dict[str, str]], bool], what: str) -> dict[str, int]:
    """Until the workers' phases are such. Their pids."""

    async def look() -> dict[str, int]:
        async with asyncio.timeout(DEADLINE_S):
            async with contextlib.aclosing(poll(layout_of_folder(folder), 0.05)) as snapshots:
                async for snapshot in snapshots:
                    rows = snapshot.workers if snapshot else []
                    if true({row.worker: row.phase for row in rows}):
                        return {row.worker: row.pid for row in rows}
        raise AssertionError(what)

    wait_for(lambda: (folder / "config.json").exists(), "folder")
    return asyncio.run(look())


def training(phases: dict[str, str]) -> bool:
    """The trainer trains, and both engines sleep. An engine's phase is as old as its last heartbeat."""
    engines = [phase for name, phase in phases.items() if name.startswith("rollout")]
    return phases.get("trainer", "").startswith("train") and engines == ["asleep", "asleep"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_a_kill_in_either_phase_changes_no_sample(write: Callable[..., Path], tmp_path: Path) -> None:
    config = write("trace")
    with started(config, *TURNS, "-o", "run.name=calm") as run:
        finish(run, tmp_path / "calm")
    folder = tmp_path / "loop"
    with started(config, *TURNS, "-o", "trace.step_s=0.05") as run:
        os.kill(await_phase(folder, training, "training")["rollout-0"], signal.SIGKILL)
        wait_for(lambda: len(metrics(folder)) >= 1, "first step")
        pids = await_phase(folder, lambda phases: phases.get("rollout-1") == "decode", "an engine at work")
        os.kill(pids["rollout-1"], signal.SIGKILL)
        wait_for(lambda: len(metrics(folder)) >= 2, "second step")
        os.kill(await_phase(folder, training, "training again")["trainer"], signal.SIGKILL)
        out = finish(run, folder)
    for name in ("rollout-0", "rollout-1", "trainer"):
        assert f"{name} ended (signal SIGKILL); starting it again" in out
    audit = [sys.executable, "-m", "rhymed", "history", "audit", str(folder)]
    done = subprocess.run(audit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert compare_runs(folder, tmp_path / "calm").wrong == []
