"""Whole runs with LoRA: what makes rollouts fast, or kills processes, changes no sample and no adapter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.packages import needs
from tests.stress.run import part_of
from tests.system.test_loop import finish, metrics, started, wait_for
from tests.system.test_onoff import config, losses, run, samples

pytestmark = [needs("peft"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

__all__ = ["config"]  # a fixture

LORA = ("trainer.lora.rank=4", "trainer.lora.alpha=8", "trainer.lr=1e-2", "trainer.epochs=3")
STEPS = 6


def adapters(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    made = folder / "checkpoints" / f"step-{STEPS:06d}"
    assert not (made / "model.safetensors").exists()
    found: dict[str, np.ndarray] = load_file(made / "adapter_model.safetensors")
    return found


def test_drafts_run_ahead_and_kills_train_the_same_adapters(config: Path) -> None:
    """With real engines. After the kills, the trainer continues from an adapter, the engine merges it again."""
    plain = run(config, "plain", *LORA, "drafts.method=none", "schedule.policy=fifo")
    folder = config.parent / "killed"
    changes = ("run.name=killed", "trainer.checkpoint_every=1", "schedule.run_ahead=1", "rollout.max_concurrency=12")
    options = [part for option in (*LORA, *changes) for part in ("-o", option)]
    with started(config, *options) as process:
        for step, victim in ((1, "trainer"), (3, "rollout")):
            wait_for(lambda step=step: len(metrics(folder)) >= step, f"step {step}", 300)  # type: ignore[misc]
            os.kill(worker_of(process.pid, victim), signal.SIGKILL)
        finish(process, folder, 400)
    expected = adapters(plain)
    assert len(expected) == 28
    assert all(np.abs(tensor).max() > 1e-2 for name, tensor in expected.items() if ".lora_B." in name)
    assert samples(folder) == samples(plain)
    for name, tensor in adapters(folder).items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
    rows = metrics(folder)
    last = {row["step"]: row for row in rows}
    assert losses([last[step] for step in range(STEPS)]) == losses(metrics(plain))
    assert all(0 <= row["mismatch_kl/mean"] < 1e-4 for row in rows), "the merged weights are the trainer's"
    assert sum(row.get("rollout/spec_accepted", 0) for row in rows) > 0
    assert any("rollout/ahead_tokens" in row for row in rows)
    evaluated(folder)


def worker_of(supervisor: int, role: str) -> int:
    """Its process."""
    children = psutil.Process(supervisor).children(recursive=True)
    return next(part.pid for child in children if (part := part_of(child)) and part.role == role)


def evaluated(folder: Path) -> None:
    """Its last checkpoint, through an engine."""
    held_out = folder.parent / "held_out.jsonl"
    held_out.write_text("".join(json.dumps({"prompt": f"count down from {number}"}) + "\n" for number in range(4)))
    tree = json.loads((folder / "config.json").read_text())
    tree["eval"]["datasets"] = [{"name": "other", "path": str(held_out)}]
    file = folder.parent / "evaluated.json"
    file.write_text(json.dumps(tree))
    command = [sys.executable, "-m", "rhymed", "eval", str(file), "--checkpoint", "latest", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["datasets"]["other"]
    assert (found["prompts"], found["dropped"]) == (4, 0)
