"""PPO in whole runs: a trainer that is killed, with its critic, trains the same as an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.kills import assert_equal_weights, run
from tests.system.test_loop import metrics

STEPS = 24  # so many that the last kill comes before the end on a slow machine
SETTINGS = (
    "trainer.epochs=9",
    f"trainer.steps={STEPS}",
    "trainer.algorithm=ppo",
    "trainer.minibatches=2",
    "trainer.gae_lambda=0.9",
    "trainer.critic.lr=1e-2",
    "trainer.critic.warmup_steps=2",
    "trainer.critic.value_clip=0.1",
)
SAME = ("actor/", "critic/", "mismatch_kl/", "reward/mean", "response_length/")


def trained(folder: Path) -> list[dict[str, float]]:
    """The metrics of each step that depend on samples and weights; the last line of a step counts."""
    last = {row["step"]: row for row in metrics(folder)}
    return [{key: value for key, value in last[step].items() if key.startswith(SAME)} for step in range(STEPS)]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_trainer_that_is_killed_with_its_critic_trains_the_same(tmp_path: Path, tiny_model: Path) -> None:
    """Once while the policy is frozen, once between two checkpoints, once after both have moved."""
    calm = run(tmp_path, tiny_model, "calm", SETTINGS)
    siege = run(tmp_path, tiny_model, "siege", SETTINGS, kills=(1, 3, 6))
    assert_equal_weights(calm, siege, STEPS, ("model.safetensors", "optimizer.state", "critic.state"))
    assert trained(siege) == trained(calm)
    assert trained(calm)[0].keys() & {"critic/loss", "actor/grad_norm"} == {"critic/loss"}
    assert trained(calm)[-1].keys() >= {"critic/explained_variance", "actor/grad_norm", "actor/kl"}
