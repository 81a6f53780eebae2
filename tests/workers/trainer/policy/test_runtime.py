"""`trainer.deterministic`: on a processor it changes no bit; on a GPU it was not tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rhymed.core.config import Config
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.backbone import WORKSPACE
from tests.workers.trainer.test_learner import samples


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(WORKSPACE, raising=False)
    yield
    os.environ.pop(WORKSPACE, None)
    torch.use_deterministic_algorithms(False)


def trained(model: Path, **trainer: bool) -> dict[str, torch.Tensor]:
    settings = {"lr": 1e-3, "micro_tokens": 40, "threads": 1, **trainer}
    config = Config.model_validate(
        {
            "model": {"path": str(model)},
            "trainer": settings,
            "rollout": {"prompts_per_step": 3, "group_size": 4, "max_prompt_length": 64, "max_response_length": 64},
            "schedule": {"colocate": True},
        }
    )
    learner = TorchLearner.restore(config, None)
    learner.train(samples(0))
    return learner.policy.model.state_dict()


def test_deterministic_kernels_are_on_request_and_train_the_same(tiny_model: Path) -> None:
    plain = trained(tiny_model)
    assert not torch.are_deterministic_algorithms_enabled()
    assert WORKSPACE not in os.environ
    exact = trained(tiny_model, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ[WORKSPACE] == ":4096:8"
    assert all(torch.equal(plain[name], exact[name]) for name in plain)
