from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rhymed.core.config import Trainer
from rhymed.core.errors import CheckpointError, ConfigError
from rhymed_workers.trainer.optim import moments, packages, shards
from rhymed_workers.trainer.optim.optimizer import build
from rhymed_workers.trainer.optim.shards import Stored

NAMES = ["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"]


def settings(name: str, **more: Any) -> Trainer:
    return Trainer.model_validate({"optimizer": name, "lr": 1e-2, "weight_decay": 0.1, **more})


def model() -> torch.nn.Module:
    """Weights of 8,192 numbers, which 8-bit optimizers quantise, and biases, which they do not."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))


def update(module: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
    loss = (module(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def needs_library(name: str) -> None:
    if name in packages.NEEDS_LIBRARY:
        pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_nearly_as_torchs_adamw_does(name: str) -> None:
    needs_library(name)
    ours, plain = model(), model()
    optimizer = build(settings(name), ours.parameters())
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    pairs = ((ours, optimizer), (plain, reference))
    found, expected = ([update(*pair, step) for step in range(20)] for pair in pairs)
    assert found[-1] < found[0] / 3
    assert found == pytest.approx(expected, rel=1e-2)
    bytes_of = sum(tensor.nbytes for tensor in moments.tensors(optimizer, ours.named_parameters()).values())
    numbers = sum(parameter.numel() for parameter in ours.parameters())
    assert bytes_of == pytest.approx(numbers * (2.1 if name.endswith("8bit") else 8), rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_optimizer_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    needs_library(name)
    straight = model()
    optimizer = build(settings(name), straight.parameters())
    for step in range(3):
        update(straight, optimizer, step)
    shards.save(tmp_path, "optimizer", moments.tensors(optimizer, straight.named_parameters()), 0)
    resumed = model()
    resumed.load_state_dict(straight.state_dict())
    again = build(settings(name), resumed.parameters())
    stored = Stored(tmp_path, "optimizer")
    moments.restore(again, resumed.named_parameters(), stored)
    assert not stored.left
    for step in range(3, 6):
        assert update(straight, optimizer, step) == update(resumed, again, step)
    both = zip(straight.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def kept(folder: Path, tensors: dict[str, Tensor]) -> Stored:
    shards.save(folder, "state", tensors, 0)
    return Stored(folder, "state")


def test_state_of_another_optimizer_or_shape_is_refused_in_words(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    trained = model()
    optimizer = build(settings("adamw"), trained.parameters())
    update(trained, optimizer, 0)
    stored = moments.tensors(optimizer, trained.named_parameters())
    for name in ("adamw_8bit", "paged_adamw"):
        other = build(settings(name), trained.parameters())
        with pytest.raises(CheckpointError, match=r"parameter 0\.weight .* continue with the trainer\.optimizer"):
            moments.restore(other, trained.named_parameters(), kept(tmp_path, stored))
    bent = {name: tensor.flatten() if tensor.dim() == 2 else tensor for name, tensor in stored.items()}
    with pytest.raises(CheckpointError, match=r"parameter 0\.weight"):
        moments.restore(
            build(settings("adamw"), trained.parameters()), trained.named_parameters(), kept(tmp_path, bent)
        )


def test_the_8_bit_state_is_the_same_paged_or_not(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    trained = model()
    optimizer = build(settings("adamw_8bit"), trained.parameters())
    update(trained, optimizer, 0)
    stored = moments.tensors(optimizer, trained.named_parameters())
    paged = build(settings("paged_adamw_8bit"), trained.parameters())
    moments.restore(paged, trained.named_parameters(), kept(tmp_path, stored))
    found: dict[str, Tensor] = moments.tensors(paged, trained.named_parameters())
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def test_parameters_may_be_few_and_have_a_rate_of_their_own() -> None:
    """As for adapters, and for a value model."""
    module = model()
    optimizer = build(settings("adamw"), module[0].parameters(), lr=0.5)  # type: ignore[index]
    before = module[2].weight.clone()  # type: ignore[index]
    update(module, optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(module[2].weight, before)  # type: ignore[index]


def test_a_missing_package_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"trainer\.optimizer = 'adamw_8bit' needs the package bitsandbytes.*'rhymed\[bitsandbytes\]'"
    with pytest.raises(ConfigError, match=message):
        build(settings("adamw_8bit"), model().parameters())
    assert packages.missing_packages(settings("adamw")) == []
    assert packages.missing_packages(settings("adamw_8bit", engine="trace")) == []
