"""Whole runs whose trainer is killed, and the weights that they end with. Samples come from the trace engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from rhymed.core.run import checkpoint
from tests.system.test_loop import CONFIG, REWARD, finish, metrics, queues, started, tails, wait_for


def run(folder: Path, model: Path, name: str, options: Sequence[str], kills: Sequence[int] = ()) -> Path:
    """Its trainer is killed whenever it has trained so many steps. Returns the run's folder."""
    (folder / "reward.py").write_text(REWARD)
    rows = [f'{{"prompt": "count to {number}", "answer": {number}}}\n' for number in range(12)]
    (folder / "rows.jsonl").write_text("".join(rows))
    file = folder / f"{name}.toml"
    file.write_text(CONFIG.format(folder=folder, model=model, engine="trace"))
    with started(file, *(part for option in (f"run.name={name}", *options) for part in ("-o", option))) as process:
        for steps in kills:
            _kill_trainer(folder / name, steps)
        out = finish(process, folder / name)
    assert out.count("trainer ended (signal SIGKILL); starting it again") == len(kills), out
    return folder / name


def _kill_trainer(folder: Path, steps: int) -> None:
    """A living one, which may itself have been started after a kill."""
    found: list[int] = []

    def trains() -> bool:
        if len({row["step"] for row in metrics(folder)}) >= steps:
            pids = [row["pid"] for row in queues(folder)["workers"] if row["worker"] == "trainer"]
            found[:] = [pid for pid in pids if psutil.pid_exists(pid)]
        return bool(found)

    wait_for(trains, f"trainer after step {steps}")
    os.kill(found[0], signal.SIGKILL)


def assert_equal_weights(first: Path, second: Path, step: int, files: Sequence[str]) -> None:
    """Of the two runs' checkpoints: every tensor of these files has the same bits."""
    one, other = (_tensors(folder, step, files) for folder in (first, second))
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []


def _tensors(folder: Path, step: int, files: Sequence[str]) -> dict[str, Any]:
    from safetensors.torch import load_file

    saved = checkpoint.at_step(folder / "checkpoints", step)
    assert saved, tails(folder)
    return {f"{name}/{key}": value for name in files for key, value in load_file(saved.folder / name).items()}
