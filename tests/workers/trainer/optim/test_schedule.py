from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.config import Trainer
from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.optim.optimizer import lr_factor


def factors(steps: int, **settings: Any) -> list[float]:
    config = Trainer(**settings)
    return [lr_factor(config, step, steps) for step in range(steps)]


def test_the_warm_up_ends_at_the_full_rate() -> None:
    assert factors(5, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors(2) == [1.0, 1.0]


@pytest.mark.parametrize(("kind", "name"), [("linear", "linear"), ("cosine", "cosine")])
def test_the_decay_is_that_of_transformers(kind: str, name: str) -> None:
    """Their warm-up begins at 0, so only steps after it are compared."""
    import torch
    from transformers import get_scheduler

    warmup, steps = 3, 17
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(name, optimizer, warmup, steps)
    expected = [theirs.lr_lambdas[0](step) for step in range(steps)]
    assert factors(steps, schedule=kind, warmup_steps=warmup)[warmup:] == pytest.approx(expected[warmup:])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_rate_falls_to_its_least_and_every_step_has_one(kind: str) -> None:
    found = factors(10, schedule=kind, warmup_steps=2, min_lr_ratio=0.1)
    assert found[:3] == [0.5, 1.0, 1.0]
    assert sorted(found[2:], reverse=True) == found[2:]
    assert 0.1 < found[-1] < 0.3
    config = Trainer(schedule=kind, min_lr_ratio=0.1)
    assert lr_factor(config, 10, 10) == lr_factor(config, 99, 10) == pytest.approx(0.1)  # a run that was shortened


def test_a_run_that_is_resumed_with_more_steps_follows_the_longer_schedule() -> None:
    config = Trainer(schedule="linear")
    assert lr_factor(config, 5, 10) == 0.5
    assert lr_factor(config, 5, 20) == 0.75


def test_the_number_of_steps_is_needed_only_by_a_schedule_that_ends() -> None:
    assert lr_factor(Trainer(schedule="linear", steps=4), 2, 0) == 0.5
    assert lr_factor(Trainer(warmup_steps=2), 7, 0) == 1.0
    with pytest.raises(TrainerError, match=r"trainer\.schedule = 'cosine' needs the number"):
        lr_factor(Trainer(schedule="cosine"), 0, 0)
