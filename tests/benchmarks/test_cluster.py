"""The arithmetic of `python -m benchmarks cluster`, and that it touches no other processes. Needs no Ray."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cluster.losses import Loss, recovery_s, useful_share, usual_s
from benchmarks.cluster.machines import GUARDIAN, MARK, Machines
from benchmarks.cluster.trial import Trial, config

CALM = [float(second) for second in range(10)]
LOST = [*CALM, *(20.0 + second for second in range(10))]  # a loss after 9 s, of which 11 s were seen
LOSS = Loss("trainer machine", 10, 9.0)


def test_the_share_of_useful_time_is_that_of_the_steps_at_their_calm_speed() -> None:
    assert usual_s(CALM) == 1.0
    assert useful_share(CALM, [], 1.0) == 1.0
    assert recovery_s(LOST, LOSS, 1.0) == 11.0, "the step that ends with the loss is followed by a long one"
    late = LOSS._replace(at=9.5)
    assert recovery_s(LOST, late, 1.0) == 10.5
    assert useful_share(LOST, [late], 1.0) == pytest.approx(19 / 29)
    slow = [2 * second for second in LOST]
    assert useful_share(slow, [late._replace(at=19.0)], 2.0) == pytest.approx(19 / 29)


def test_a_run_that_never_recovers_has_no_useful_time_after_the_loss() -> None:
    ended = [*CALM, 30.0, 60.0, 90.0, 120.0, 150.0]
    late = LOSS._replace(at=9.5)
    assert recovery_s(ended, late, 1.0) is None
    assert useful_share(ended, [late], 1.0) == pytest.approx(14 / 150)


def test_a_line_that_is_being_written_is_no_step_yet(tmp_path: Path) -> None:
    trial = Trial(config(tmp_path, "run", 5, 1))
    trial.folder.mkdir()
    (trial.folder / "metrics.jsonl").write_text('{"step": 0, "time": 5.0}\n{"step": 1, "ti')
    assert trial.done() == [5.0]


@pytest.mark.parametrize(("mark", "found"), [("ours", ["rollout-0"]), ("somebody's", [])])
def test_processes_of_other_clusters_are_not_seen(mark: str, found: list[str]) -> None:
    command = [sys.executable, "-c", "input()", "-m", GUARDIAN, "rollout-0", str(os.getpid())]
    machines = Machines(0, cpus=1)
    machines._mark = "ours"
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, MARK: mark}) as other:
        assert [one.name for one in machines.watched()] == found
        other.communicate(b"\n")
