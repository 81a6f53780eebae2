"""Runs one side once and watches it: seconds and reward of each step, and peak memory of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import tasks, trl_run
from rhymed.core.errors import RhymedError
from rhymed.core.run.folder import layout_of_folder, read_metrics
from rhymed.core.service.children import last_lines

LOOK_EVERY_S = 2.0
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

Side = dict[str, Any]
"""`steps`: seconds, reward and mean response length of each; `peak_bytes`; `elapsed_s` with start and end."""


def ours(task: str, steps: int, seed: int, folder: Path, more: tuple[str, ...]) -> Side:
    """`folder`: for the run."""
    own = [f"run.name={folder.name}", f"run.folder={folder.parent.resolve()}", f"run.seed={seed}"]
    changes = [word for setting in (*tasks.settings(task, steps, more), *own) for word in ("-o", setting)]
    command = [sys.executable, "-m", "rhymed", "run", str(tasks.file_of(task)), "--plain", *changes]
    peak, elapsed_s = _watched(command, folder.with_name(f"{folder.name}.log"))
    rows = read_metrics(layout_of_folder(folder))
    found = [
        {"seconds": row["timing_s/step"], "reward": row["reward/mean"], "length": row["response_length/mean"]}
        for row in rows
    ]
    return {"steps": found, "peak_bytes": peak, "elapsed_s": elapsed_s}


def trl(python: Path, job: dict[str, Any], folder: Path) -> Side:
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job))
    out = folder / "out.json"
    command = [str(python), str(trl_run.__file__), str(folder / "job.json"), str(out)]
    peak, elapsed_s = _watched(command, folder.with_name(f"{folder.name}.log"))
    return {**json.loads(out.read_text()), "peak_bytes": peak, "elapsed_s": elapsed_s}


def _watched(command: Sequence[str], log: Path) -> tuple[int, float]:
    """(peak memory in bytes, seconds). Raises `RhymedError` if it fails."""
    started, peak = time.monotonic(), 0
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | QUIET) as child,
    ):
        try:
            while child.poll() is None:
                peak = max(peak, _memory(child.pid))
                time.sleep(LOOK_EVERY_S)
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise RhymedError("\n".join([f"{log.stem} failed; its output is in {log}", *last_lines(log)]))
    return peak, time.monotonic() - started


def _memory(pid: int) -> int:
    """Of a process and its descendants; pages that several share count once."""
    total = 0
    try:
        whole = psutil.Process(pid)
        for process in (whole, *whole.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.Error:
        pass  # one ended meanwhile: the next look counts
    return total
