"""A run has one writer of checkpoints and weights: of two that want to be it, one is, and the other ends in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.saving import LOCK, only_writer

HOLDER = """
import sys, time
from pathlib import Path
from rhymed_workers.trainer.saving import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "held\n"
            with (
                pytest.raises(TrainerError, match=rf"has a trainer already \(process {first.pid} on .*end it before"),
                only_writer(tmp_path),
            ):
                pass
        finally:
            first.kill()
    with only_writer(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith("process ")
    with only_writer(tmp_path):
        pass
