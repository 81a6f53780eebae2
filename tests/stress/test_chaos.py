"""A run under fire trains what the same run trains in peace: real processes, real kills, and the audit of both."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.twins import compare_runs
from tests.stress import chaos
from tests.stress.run import LiveRun, Shape

SMALL = (
    "rollout.max_response_length=300",
    "trace.mean_length=30",
    "trainer.checkpoint_every=3",
    "rollout.save_every_s=0.5",
)


def audit(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", "history", "audit", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_whatever_dies_every_sample_is_trained_once_and_the_weights_are_the_same(tmp_path: Path) -> None:
    found = chaos.run(
        True, steps=20, kills=12, every=1.2, seed=5, rollout=2, reward=1, out=tmp_path / "runs", override=SMALL
    )
    assert found["wrong"] == [], found
    assert found["good"]
    assert found["dropped"] == 0
    assert found["acknowledged_lost"] == 0
    assert found["steps"] == 20
    assert found["epochs"] > 3
    assert found["kills"] >= 5
    assert any(row["kind"] == "all" for row in found["table"])
    assert "the same, bit for bit" in found["audit"]
    done = audit(tmp_path / "runs" / "chaos")
    assert done.returncode == 0, done.stdout
    assert "every sample is accounted for, exactly once" in done.stdout


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_other_samples_are_not_passed_for_the_same(tmp_path: Path) -> None:
    """Of two runs whose prompts came in another order: the comparison compares something."""
    for name, seed in (("one", 0), ("other", 1)):
        shape = Shape(3, 1, 1, prompts=20, override=(*SMALL, f"run.seed={seed}"))
        with LiveRun(shape.write(tmp_path / name, "run")) as run:
            assert run.wait(250) == 0, run.tail()
    assert audit(tmp_path / "one" / "run").returncode == 0
    assert compare_runs(tmp_path / "one" / "run", tmp_path / "other" / "run").wrong


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_without_any_model_needs_none_and_imports_no_torch(tmp_path: Path) -> None:
    """Every process ends well although the model's name leads nowhere."""
    shape = Shape(2, 1, 1, override=(*SMALL, "model.path=/there/is/no/model"))
    with LiveRun(shape.write(tmp_path, "run")) as run:
        torch: set[bool] = set()
        while run.wait(0.2) is None:
            for part in run.parts():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    torch.add("libtorch" in Path(f"/proc/{part.pid}/maps").read_text())
        assert run.status == 0, run.tail(20)
    assert torch == {False}
    assert "none: neither engine nor trainer needs one" in run.output.read_text()
