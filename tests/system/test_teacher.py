"""Self-distillation and a warm start in whole runs: a killed trainer trains the same as an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.kills import assert_equal_weights, run
from tests.system.test_loop import metrics

SELF = ("trainer.algorithm=opsd", "trainer.teacher.demonstration=answer", "trainer.teacher.over=vocabulary")
ANSWERS = ("trainer.algorithm=sft", "rollout.engine=dataset", "rollout.group_size=1")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("options", "steps"), [(SELF, 30), (ANSWERS, 80)], ids=["opsd", "sft"])
def test_a_killed_trainer_trains_the_same(
    tmp_path: Path, tiny_model: Path, options: tuple[str, ...], steps: int
) -> None:
    """So many steps that the kill comes before the end: those of answers are short."""
    every = ("trainer.epochs=40", f"trainer.steps={steps}", *options)
    calm = run(tmp_path, tiny_model, "calm", every)
    siege = run(tmp_path, tiny_model, "siege", every, kills=(1,))
    assert_equal_weights(calm, siege, steps, ("model.safetensors", "optimizer.state"))
    assert ("distill/divergence" in metrics(calm)[-1]) == (options == SELF)
