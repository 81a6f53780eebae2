"""The critic on its own: what it learns, its metrics, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rhymed.core.config import Trainer
from rhymed.core.errors import CheckpointError, CheckpointLost
from rhymed.core.run import checkpoint
from rhymed_workers.trainer.algorithms import gae
from rhymed_workers.trainer.critic import FILE, Critic, Targets, ValueModel
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches


@pytest.fixture
def critic(tiny_model: Path) -> Callable[..., Critic]:
    def make(**settings: Any) -> Critic:
        given = {"weight_decay": 0.01}
        config = Trainer.model_validate(given | {"critic": {"lr": 1e-3, **settings}})
        return Critic(config, ValueModel.load(tiny_model))

    return make


def batches_of(samples: list[Sequences]) -> list[MicroBatch]:
    return micro_batches(samples, range(len(samples)), 40)


def step(critic: Critic, samples: list[Sequences], returns: torch.Tensor) -> dict[str, float]:
    """One update, as the learner does it."""
    batches, count = batches_of(samples), len(returns)
    targets = Targets(critic.values(batches, count), returns, torch.full((count,), 1 / count))
    for batch in batches:
        critic.accumulate(batch, targets)
    critic.update()
    return critic.metrics(targets)


def weights(critic: Critic) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in critic.model.named_parameters()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_two_and_two_updates_are_four_to_the_bit(
    critic: Callable[..., Critic], samples: list[Sequences], tmp_path: Path
) -> None:
    returns = torch.linspace(-1, 2, 27)
    straight = critic()
    expected = [step(straight, samples, returns) for _ in range(4)]

    first = critic()
    for _ in range(2):
        step(first, samples, returns)
    first.snapshot(2)(tmp_path)
    second = critic()
    second.load(tmp_path, 2)
    assert [step(second, samples, returns) for _ in range(2)] == expected[2:]
    assert equal(weights(second), weights(straight))
    assert not equal(weights(second), weights(critic()))


def test_a_critic_learns_what_can_be_known(critic: Callable[..., Critic]) -> None:
    """The response's second token decides on the return. Before it, half of the variance cannot be explained."""
    draw = np.random.default_rng(1)
    prompt = draw.integers(2, 250, 6)
    samples = [
        Sequences(prompt, np.concatenate([draw.integers(2, 250, 1), [100 + n % 2], draw.integers(2, 250, 4)]))
        for n in range(16)
    ]
    returns = torch.tensor([float(n % 2) for n in range(16)]).repeat_interleave(6)
    made = critic(lr=3e-3, value_clip=0)
    found = [step(made, samples, returns) for _ in range(12)]
    assert found[0]["critic/explained_variance"] == 0
    assert found[0]["critic/value_mean"] == 0
    assert found[0]["critic/return_mean"] == 0.5
    assert found[-1]["critic/explained_variance"] > 0.5
    assert found[-1]["critic/loss"] < 0.5 * found[0]["critic/loss"]
    assert all(one["critic/grad_norm"] > 0 for one in found)


def test_a_clipped_critic_does_not_run_away_in_one_step(
    critic: Callable[..., Critic], samples: list[Sequences]
) -> None:
    """Several updates on the same old values."""
    batches, count = batches_of(samples), 27

    def trained(clip: float) -> tuple[float, float]:
        made = critic(lr=1e-2, value_clip=clip)
        targets = Targets(made.values(batches, count), torch.full((count,), 5.0), torch.full((count,), 1 / count))
        for _ in range(6):
            for batch in batches:
                made.accumulate(batch, targets)
            made.update()
        return float(made.values(batches, count).max()), made.metrics(targets)["critic/clipfrac"]

    free, never = trained(0)
    held, clipped = trained(0.05)
    assert held < free
    assert never == 0 < clipped < 1


def test_masked_tokens_teach_nothing(critic: Callable[..., Critic], samples: list[Sequences]) -> None:
    batches, trained_N = batches_of(samples), torch.arange(27) % 3 > 0
    one, other = critic(), critic()
    for made, odd in ((one, 1.0), (other, 1e6)):
        returns_N = torch.where(trained_N, 1.0, odd)
        targets = Targets(made.values(batches, 27), returns_N, trained_N / trained_N.sum())
        for batch in batches:
            made.accumulate(batch, targets)
        made.update()
        assert made.metrics(targets)["critic/return_mean"] == 1
    assert equal(weights(one), weights(other))


def test_what_is_not_finite_does_not_reach_the_weights(
    critic: Callable[..., Critic], samples: list[Sequences], caplog: pytest.LogCaptureFixture
) -> None:
    made = critic()
    before = weights(made)
    found = step(made, samples, torch.full((27,), 1e38))
    assert equal(weights(made), before)
    assert found["critic/skipped_updates"] == 1
    assert "critic/loss" not in found
    assert "this update is skipped" in caplog.text
    step(made, samples, torch.ones(27))
    assert not equal(weights(made), before)


def test_the_manifest_of_a_checkpoint_covers_the_critic(
    critic: Callable[..., Critic], samples: list[Sequences], tmp_path: Path
) -> None:
    made = critic()
    for number in (1, 2):
        step(made, samples, torch.ones(27))
        write = made.snapshot(number)
        checkpoint.save(tmp_path, number, lambda folder, write=write: dict.fromkeys(write(folder), ""), keep=2)  # type: ignore[misc]
    file = tmp_path / "step-000002" / FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert checkpoint.resume(tmp_path).step == 1  # type: ignore[union-attr]
    (tmp_path / "step-000001" / FILE).unlink()
    with pytest.raises(CheckpointLost, match="every checkpoint"):
        checkpoint.resume(tmp_path)


def test_what_is_not_this_critics_state_is_refused_in_words(
    critic: Callable[..., Critic], samples: list[Sequences], tmp_path: Path
) -> None:
    made = critic()
    with pytest.raises(CheckpointError, match=r"no critic\.state, so it was written by an algorithm without critic"):
        made.load(tmp_path, 0)
    step(made, samples, torch.ones(27))
    made.snapshot(3)(tmp_path)
    before = weights(made)
    with pytest.raises(CheckpointError, match="is of 3 trained steps, the policy next to it of 4"):
        made.load(tmp_path, 4)
    good = load_file(tmp_path / FILE)
    for change, message in (
        ({"weight.head.weight": None}, r"not of this critic \(trainer\.critic\.model\): it has no head\.weight"),
        ({"weight.head.weight": torch.ones(1, 7)}, r"it has no head\.weight of its shape"),
        ({"exp_avg.head.bias": None}, r"the state of parameter head\.bias .* is not of AdamW"),
        ({"weight.odd": torch.ones(1)}, r"it has weight\.odd"),
        ({"steps": None}, "an unknown number of trained steps"),
    ):
        changed: dict[str, Any] = good | change  # type: ignore[operator]
        save_file({key: tensor for key, tensor in changed.items() if tensor is not None}, tmp_path / FILE)
        with pytest.raises(CheckpointError, match=message):
            made.load(tmp_path, 3)
    (tmp_path / FILE).write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="cannot be read"):
        made.load(tmp_path, 3)
    assert equal(weights(made), before)


def test_estimates_of_a_trained_critic_have_less_variance(critic: Callable[..., Critic]) -> None:
    """What a critic is for: advantages vary less once values are learned."""
    draw = np.random.default_rng(2)
    prompts = [draw.integers(2, 250, 6) for _ in range(4)]
    samples = [Sequences(prompts[n % 4], draw.integers(2, 250, 3)) for n in range(16)]
    lengths_B = torch.full((16,), 3)
    rewards_N = gae.token_rewards(torch.tensor([float(n % 4) for n in range(16)]), lengths_B)
    made, batches = critic(lr=3e-3, value_clip=0), batches_of(samples)

    def spread() -> float:
        found = gae.estimate(rewards_N, made.values(batches, 48), lengths_B, lam=0.95)
        return float(found.advantages_N.var())

    before = spread()
    for _ in range(15):
        step(made, samples, gae.estimate(rewards_N, torch.zeros(48), lengths_B).returns_N.float())
    assert spread() < 0.5 * before
