"""A run whose trainer has several ranks: one is killed, and the run ends with the same weights as without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.twins import compare_runs
from rhymed_workers.trainer.export import chosen, export
from tests.ports import free_ports
from tests.stress.run import LiveRun, Shape, with_model

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1500)]

STEPS, KILLED_AFTER = 8, 4  # with a checkpoint after every third


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def run(folder: Path, name: str, *, kill: str = "") -> Path:
    """The run's folder. `kill`: the process that is killed once, after `KILLED_AFTER` steps."""
    settings = with_model(folder, ranks=2)
    with LiveRun(Shape(STEPS, 1, 1, settings=settings).write(folder, name)) as live:
        while live.wait(0.1) is None:
            if kill and len(lines(live.where.metrics)) >= KILLED_AFTER:
                victim = next((part for part in live.parts() if part.name == kill), None)
                if victim:
                    os.kill(victim.pid, signal.SIGKILL)
                    kill = ""
        assert live.status == 0, live.tail(30)
        assert not kill, "it was killed"
        return live.where.folder


def on_two_nodes(folder: Path) -> Path:
    """The run's folder. The second node is another process here, and its rank is killed once."""
    settings = with_model(folder, ranks=1)
    settings["trainer"]["nodes"] = 2
    settings["net"] = {"ranks": f"tcp://127.0.0.1:{free_ports(1)[0]}"}
    file = Shape(STEPS, 1, 1, settings=settings).write(folder, "nodes")
    argv = [sys.executable, "-m", "rhymed", "worker", "--role", "trainer", "--node", "1", "--name", "node", str(file)]
    node = psutil.Popen(argv)
    try:
        with LiveRun(file) as live:
            killed = False
            while live.wait(0.1) is None:
                if not killed and len(lines(live.where.metrics)) >= KILLED_AFTER:
                    (follower,) = node.children()
                    follower.kill()
                    killed = True
            assert live.status == 0, live.tail(30)
            assert killed
            assert node.poll() is None, "it waits for the next rank 0"
            return live.where.folder
    finally:
        node.terminate()
        assert node.wait(30) == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def calm(home: Path) -> Path:
    """The folder of an undisturbed run of two ranks that train all weights."""
    return run(home, "calm")


def same_training(calm: Path, other: Path) -> None:
    compared = compare_runs(calm, other)
    assert compared.wrong == []
    assert compared.weights == f"weights: the same, bit for bit, after {STEPS} steps"


def test_ranks_on_two_nodes_train_the_same_and_begin_again_when_one_dies(home: Path, calm: Path) -> None:
    same_training(calm, on_two_nodes(home))


def test_a_second_rank_0_ends_in_words_and_changes_nothing(home: Path, calm: Path) -> None:
    """It is started while the first one trains, and must neither remove its weights nor touch its checkpoints."""
    with LiveRun(Shape(STEPS, 1, 1, settings=with_model(home, ranks=2)).write(home, "disturbed")) as live:
        while not lines(live.where.metrics):
            assert live.wait(0.1) is None, live.tail(30)
        role = ("worker", "--role", "trainer", "--name", "second", str(live.where.config))
        second = subprocess.run([sys.executable, "-m", "rhymed", *role], capture_output=True, text=True, timeout=300)
        assert live.wait(600) == 0, live.tail(30)
    said = second.stdout + second.stderr
    assert second.returncode not in (0, None)
    assert "has a trainer already (process" in said
    assert "Traceback" not in said
    same_training(calm, live.where.folder)


def test_a_killed_rank_changes_no_weight(home: Path, calm: Path, tmp_path: Path) -> None:
    killed = run(home, "killed", kill="trainer-1")
    same_training(calm, killed)
    again = [json.loads(line)["step"] for line in lines(killed / "metrics.jsonl")]
    assert len(again) > STEPS, "steps after the checkpoint were trained again"
    started = [line for line in lines(killed / "logs" / "trainer-1.log") if "generation" in line]
    assert len(started) == 2, "as a new group"
    ended = (killed / "logs" / "trainer.out").read_text()
    assert "a rank" in ended or "rank 1 of the trainer ended (signal SIGKILL)" in ended

    export(chosen(calm / "checkpoints", None), tmp_path / "exported", "bfloat16")
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "exported").dtype == torch.bfloat16
