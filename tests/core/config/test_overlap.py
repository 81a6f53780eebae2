"""What training that overlaps with rollouts does not go together with, as sentences."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rhymed.core.algorithms import ALGORITHMS
from rhymed.core.config import Config


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainer": {"minibatches": 2}}, r"trainer.minibatches = 2 changes the weights within the step"),
        ({"trainer": {"algorithm": "ppo"}}, r"trainer.algorithm = 'ppo' has a critic, which reads the whole step"),
        ({"trainer": {"whiten": True}}, r"trainer.whiten takes mean and deviation of the whole step"),
        ({"trainer": {"advantage_scale": "batch"}}, r"'batch' takes the deviation of the whole step"),
        ({"trainer": {"algorithm": "gdpo"}}, r"'decoupled' takes the deviation of the whole step"),
        ({"trainer": {"entropy_coef": 0.1}}, r"trainer.entropy_coef weights the mean over the whole step"),
        ({"trainer": {"teacher": {"model": "x"}}}, r"trainer.teacher answers for the whole step"),
        ({"schedule": {"colocate": True}}, r"with schedule.colocate the trainer has no GPU while engines generate"),
    ],
)
def test_what_needs_the_whole_step_is_named(sections: dict[str, Any], message: str) -> None:
    Config.model_validate(sections)
    given = {**sections, "trainer": {**sections.get("trainer", {}), "overlap": True}}
    with pytest.raises(ValidationError, match=f"trainer.overlap computes groups one by one, and .*{message}"):
        Config.model_validate(given)


def test_algorithms_of_single_groups_overlap() -> None:
    for name in ("grpo", "dapo", "dr_grpo", "gspo", "rloo", "cispo"):
        assert name in ALGORITHMS
        assert Config.model_validate({"trainer": {"algorithm": name, "overlap": True}}).trainer.overlap
