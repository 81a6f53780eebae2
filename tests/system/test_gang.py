"""A run whose trainer is a gang of ranks: one is killed, and the run ends with the same weights as without."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rhymed.history.compare.runs import compare_runs
from rhymed_workers.trainer.export import chosen, export
from tests.stress.run import LiveRun, Shape, with_model

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1500)]

STEPS, KILLED_AFTER = 8, 4  # with a checkpoint after every third
LORA = {"lora": {"rank": 3, "alpha": 8}, "lr": 1e-3}
TAUGHT = {"algorithm": "opsd", "teacher": {"system": "Be brief.", "over": "vocabulary"}}


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def run(folder: Path, name: str, *, kill: str = "", trainer: dict[str, Any] | None = None) -> Path:
    """The run's folder. `kill`: the process that is killed once, after `KILLED_AFTER` steps."""
    settings = with_model(folder, ranks=2)
    settings["trainer"] |= trainer or {}
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_two_nodes(folder: Path) -> Path:
    """The run's folder. The second node is another process here, and its rank is killed once."""
    settings = with_model(folder, ranks=1)
    settings["trainer"]["nodes"] = 2
    settings["net"] = {"ranks": f"tcp://127.0.0.1:{free_port()}"}
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
            assert node.poll() is None, "it waits for the next gang"
            return live.where.folder
    finally:
        node.terminate()
        assert node.wait(30) == 0


def test_ranks_on_two_nodes_train_the_same_and_begin_again_when_one_dies(tmp_path: Path) -> None:
    compared = compare_runs(run(tmp_path, "calm"), on_two_nodes(tmp_path))
    assert compared.wrong == []
    assert compared.weights == f"weights: the same, bit for bit, after {STEPS} steps"


@pytest.mark.parametrize("trainer", [{}, LORA, TAUGHT], ids=["plain", "lora", "taught"])
def test_a_killed_rank_changes_no_weight(tmp_path: Path, trainer: dict[str, Any]) -> None:
    calm = run(tmp_path, "calm", trainer=trainer)
    killed = run(tmp_path, "killed", kill="trainer-1", trainer=trainer)
    compared = compare_runs(calm, killed)
    assert compared.wrong == []
    assert compared.weights == f"weights: the same, bit for bit, after {STEPS} steps"
    again = [json.loads(line)["step"] for line in lines(killed / "metrics.jsonl")]
    assert len(again) > STEPS, "steps after the checkpoint were trained again"
    started = [line for line in lines(killed / "logs" / "trainer-1.log") if "generation" in line]
    assert len(started) == 2, "in a new gang"
    ended = (killed / "logs" / "trainer.out").read_text()
    assert "a rank" in ended or "rank 1 of the trainer ended (signal SIGKILL)" in ended

    source = tmp_path / "model" if trainer is LORA else None
    export(chosen(calm / "checkpoints", None), tmp_path / "exported", "bfloat16", source)
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "exported").dtype == torch.bfloat16
