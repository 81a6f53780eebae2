"""Command lines as a page shows them, run in a folder that has what a clone has; sizes come from the environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300

SMALL = {
    "RHYMED_ROLLOUT__PROMPTS_PER_STEP": "4",
    "RHYMED_ROLLOUT__GROUP_SIZE": "2",
    "RHYMED_ROLLOUT__KV_CACHE_GIB": "0.2",
    "RHYMED_REWARD__PROCESSES": "1",
    "RHYMED_TRAINER__STEPS": "2",
    "RHYMED_TRAINER__THREADS": "1",
    "RHYMED_SCHEDULE__HEARTBEAT_S": "0.3",
    "RHYMED_SCHEDULE__LOST_AFTER_S": "20",
    "RHYMED_MODEL__DTYPE": "float32",
}
TRACE = {
    "RHYMED_ROLLOUT__ENGINE": "trace",
    "RHYMED_TRACE__VOCABULARY": "258",
    "RHYMED_TRACE__MEAN_LENGTH": "8",
    "RHYMED_TRACE__STEP_S": "0.005",
}
NO_MODEL = TRACE | {"RHYMED_TRAINER__ENGINE": "trace"}


def clone(folder: Path) -> Path:
    """The parts of a clone that the commands use."""
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def settings(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    """For what is started from now on."""
    for key, value in values.items():
        monkeypatch.setenv(key, value)


def environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    """These settings, and `rhymed` on the path."""
    settings(monkeypatch, values)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def do(command: str, folder: Path) -> str:
    """Its standard output; it has to succeed."""
    done = subprocess.run(shlex.split(command), cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@contextlib.contextmanager
def background(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command goes on during the block; it has to end by itself, with status 0."""
    with subprocess.Popen(
        shlex.split(command), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
            out, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, f"{command}\n{out}"
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)


def until(word: str, process: subprocess.Popen[str]) -> None:
    """Reads what the process says, as far as a line with this word."""
    assert process.stdout is not None
    said = ""
    while word not in (line := process.stdout.readline()):
        said += line
        assert line, f"it ended without a word of {word}:\n{said}"
