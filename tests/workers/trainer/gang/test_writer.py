"""A run has one writer of checkpoints and weights: of two that want to be it, one is, and the other ends in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.errors import TrainerError
from rhymed.history.compare.runs import compare_runs
from rhymed_workers.trainer.saving.writer import LOCK, only_writer
from tests.stress.run import LiveRun, Shape, with_model

HOLDER = """
import sys, time
from pathlib import Path
from rhymed_workers.trainer.saving.writer import only_writer
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


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_second_gang_ends_in_words_and_changes_nothing(tmp_path: Path) -> None:
    """It is started while the first one trains, and must neither remove its weights nor touch its checkpoints."""
    pytest.importorskip("torch")
    folders = []
    for name in ("calm", "disturbed"):
        file = Shape(8, 1, 1, settings=with_model(tmp_path, ranks=2)).write(tmp_path, name)
        with LiveRun(file) as live:
            second: subprocess.Popen[str] | None = None
            while live.wait(0.2) is None:
                lines = live.where.metrics.read_text().splitlines() if live.where.metrics.exists() else []
                if name == "disturbed" and second is None and lines:
                    role = ("worker", "--role", "trainer", "--name", "second", str(live.where.config))
                    second = subprocess.Popen(
                        [sys.executable, "-m", "rhymed", *role],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
            assert live.status == 0, live.tail(30)
            folders.append(live.where.folder)
        if second is not None:
            said, _ = second.communicate(timeout=120)
            assert second.returncode not in (0, None)
            assert "has a trainer already (process" in said
            assert "Traceback" not in said
    assert second is not None
    compared = compare_runs(*folders)
    assert compared.wrong == []
    assert compared.weights == "weights: the same, bit for bit, after 8 steps"
