from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rhymed_workers.trainer.critic import ValueModel
from rhymed_workers.trainer.policy.packing import Sequences


@pytest.fixture
def samples() -> list[Sequences]:
    """Five, of two prompts: some share rows."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(2, 250, length) for length in (5, 11)]
    return [
        Sequences(prompts[number % 2], draw.integers(2, 250, length))
        for number, length in enumerate([7, 1, 12, 3, 4])
    ]


@pytest.fixture
def model(tiny_model: Path) -> ValueModel:
    """With a head that is not 0."""
    made = ValueModel.load(tiny_model)
    torch.manual_seed(4)
    torch.nn.init.normal_(made.head.weight, std=0.3)
    torch.nn.init.constant_(made.head.bias, 0.5)
    return made
