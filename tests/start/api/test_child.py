"""The child process of a run, as a program sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.errors import ConfigError, RunFailed
from rhymed.start.api import child


def test_a_mistake_is_its_error_and_no_folder(tmp_path: Path) -> None:
    outcome = child.call(["run", str(tmp_path / "none.toml")], progress=True)
    assert isinstance(outcome.error, ConfigError)
    assert (outcome.folder, outcome.interrupted) == (None, False)


def test_a_process_that_says_nothing_of_its_end_has_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    outcome = child.call(["rhymed"], progress=False)
    assert isinstance(outcome.error, RunFailed)
    assert str(outcome.error) == "the process of the run ended with status 1: it printed nothing"


ENDED = """
import os, sys, time
from rhymed.start.launch.program import shown

with shown():
    print("shown", flush=True)
    time.sleep(60)
"""


def test_a_run_ends_with_the_program_it_belongs_to(tmp_path: Path) -> None:
    environ = {**os.environ, "RHYMED_PROGRAM": str(tmp_path / "told.json")}
    with subprocess.Popen(
        [sys.executable, "-c", ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        assert run.stdout.readline() == b"shown\n"
        run.stdin.close()
        assert run.wait(30) == -signal.SIGTERM
