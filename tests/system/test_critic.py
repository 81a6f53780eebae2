"""PPO in whole runs: the trainer is killed, with its critic, and trains the same in the end as in peace."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from rhymed.run import checkpoint
from tests.system.test_loop import CONFIG, REWARD, finish, metrics, queues, started, tails, wait_for

STEPS = 8
PPO = """
[trainer.critic]
lr = 1e-2
warmup_steps = 2
value_clip = 0.1
"""
SETTINGS = ("trainer.algorithm=ppo", "trainer.minibatches=2", "trainer.gae_lambda=0.9", f"trainer.steps={STEPS}")
SAME = ("actor/", "critic/", "mismatch_kl/", "reward/mean", "response_length/")


def run(folder: Path, model: Path, name: str, kills: tuple[int, ...] = ()) -> Path:
    """A run whose trainer is killed as soon as it has trained so many steps."""
    (folder / "reward.py").write_text(REWARD)
    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "count to {number}"}}\n' for number in range(12)))
    file = folder / f"{name}.toml"
    file.write_text((CONFIG + PPO).format(folder=folder, model=model, engine="trace"))
    options = (f"run.name={name}", "trainer.epochs=9", *SETTINGS)
    with started(file, *(part for option in options for part in ("-o", option))) as process:
        for steps in kills:
            kill_trainer(folder / name, steps)
        out = finish(process, folder / name)
    assert out.count("trainer ended (signal SIGKILL); starting it again") == len(kills), out
    return folder / name


def kill_trainer(folder: Path, steps: int) -> None:
    """A living one, which may itself have been started after a kill."""
    found: list[int] = []

    def trains() -> bool:
        if len({row["step"] for row in metrics(folder)}) >= steps:
            pids = [row["pid"] for row in queues(folder)["workers"] if row["worker"] == "trainer"]
            found[:] = [pid for pid in pids if psutil.pid_exists(pid)]
        return bool(found)

    wait_for(trains, f"trainer after step {steps}")
    os.kill(found[0], signal.SIGKILL)


def weights(folder: Path) -> dict[str, Any]:
    """Policy, critic and both optimizers after the last step."""
    saved = checkpoint.at_step(folder / "checkpoints", STEPS)
    assert saved, tails(folder)
    files = ("model.safetensors", "optimizer.state", "critic.state")
    return {f"{name}/{key}": value for name in files for key, value in load_file(saved.folder / name).items()}


def trained(folder: Path) -> list[dict[str, float]]:
    """What the metrics say of each step; the last line of a step counts."""
    last = {row["step"]: row for row in metrics(folder)}
    return [{key: value for key, value in last[step].items() if key.startswith(SAME)} for step in range(STEPS)]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_trainer_that_is_killed_with_its_critic_trains_the_same(tmp_path: Path, tiny_model: Path) -> None:
    """Once while the policy is frozen, once between two checkpoints, once after both have moved."""
    calm = run(tmp_path, tiny_model, "calm")
    siege = run(tmp_path, tiny_model, "siege", kills=(1, 3, 6))
    one, other = weights(calm), weights(siege)
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []
    assert trained(siege) == trained(calm)
    assert trained(calm)[0].keys() & {"critic/loss", "actor/grad_norm"} == {"critic/loss"}
    assert trained(calm)[-1].keys() >= {"critic/explained_variance", "actor/grad_norm", "actor/kl"}
