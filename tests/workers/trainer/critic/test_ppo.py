"""PPO through the learner: policy and critic in one step, in checkpoints, and on a task that can be learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rhymed.core.config import Config
from rhymed.core.errors import CheckpointError
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.critic import FILE
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.attention import NAME
from tests.workers.trainer.test_learner import equal, rewarded, samples, untimed

Make = Callable[..., TorchLearner]


@pytest.fixture
def learner(tiny_model: Path) -> Make:
    def make(folder: Path | None = None, critic: dict[str, Any] | None = None, **settings: Any) -> TorchLearner:
        given = {"algorithm": "ppo", "lr": 1e-3, "micro_tokens": 40, "critic": {"lr": 1e-3, **(critic or {})}}
        config = Config.model_validate(
            {
                "model": {
                    "path": str(tiny_model),
                    "dtype": "float32",
                    "train_dtype": settings.pop("train_dtype", "float32"),
                },
                "rollout": {
                    "prompts_per_step": 3,
                    "group_size": 4,
                    "max_prompt_length": 32,
                    "max_response_length": 16,
                },
                "trainer": given | settings,
            }
        )
        return TorchLearner.restore(config, folder)

    return make


def policy(learner: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.policy.model.state_dict().items()}


def values(learner: TorchLearner) -> dict[str, torch.Tensor]:
    assert learner.critic is not None
    return {name: tensor.clone() for name, tensor in learner.critic.model.state_dict().items()}


@pytest.mark.parametrize(
    ("critic", "settings"),
    [({}, {"kl_coef": 0}), ({"warmup_steps": 3, "value_clip": 0.01}, {"minibatches": 3, "gae_lambda": 0.9})],
    ids=str,
)
def test_two_and_two_steps_are_four_steps_to_the_bit(
    learner: Make, tmp_path: Path, critic: dict[str, Any], settings: dict[str, Any]
) -> None:
    straight = learner(critic=critic, **settings)
    expected = [straight.train(samples(step)) for step in range(4)]

    first = learner(critic=critic, **settings)
    for step in range(2):
        first.train(samples(step))
    first.save(tmp_path)
    torch.manual_seed(99)
    second = learner(tmp_path, critic=critic, **settings)
    found = [second.train(samples(step)) for step in range(2, 4)]

    assert [untimed(one) for one in found] == [untimed(one) for one in expected[2:]]
    assert equal(policy(second), policy(straight))
    assert equal(values(second), values(straight))


def test_a_checkpoint_without_a_critic_is_not_continued_with_one(learner: Make, tmp_path: Path) -> None:
    made = learner()
    made.train(samples(0))
    made.save(tmp_path)
    (tmp_path / FILE).rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"no critic\.state, so it was written by an algorithm without critic"):
        learner(tmp_path)
    (tmp_path / "away").rename(tmp_path / FILE)
    assert learner(tmp_path).steps == 1


def test_micro_batches_do_not_change_the_step(learner: Make) -> None:
    """The head is 0 in the first step, so the body has a gradient from the second on."""
    one, many = learner(micro_tokens=4096, minibatches=2), learner(micro_tokens=1, minibatches=2)
    for step in range(2):
        first, second = one.train(samples(step)), many.train(samples(step))
        for key in ("actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/value_mean"):
            assert first[key] == pytest.approx(second[key], rel=1e-4, abs=1e-6), key
    assert first["critic/value_mean"] != 0


def test_the_policy_is_frozen_while_the_critic_warms_up(learner: Make) -> None:
    made = learner(critic={"warmup_steps": 2}, weight_decay=0.1)
    start = policy(made)
    for step in range(2):
        before = values(made)
        found = made.train(samples(step))
        assert equal(policy(made), start)
        assert not equal(values(made), before)
        assert found["critic/grad_norm"] > 0
        assert found["mismatch_kl/mean"] > 0  # engine and trainer are compared all the same
        assert "actor/grad_norm" not in found
        assert found["perf/train_tokens_per_s"] > 0
    found = made.train(samples(2))
    assert not equal(policy(made), start)
    assert found["actor/grad_norm"] > 0


def test_all_of_a_step_is_compared_with_the_values_before_its_first_update(learner: Make) -> None:
    """In the first step these are 0, however many updates it has."""
    found = learner(critic={"lr": 1e-2, "value_clip": 1e-3}, minibatches=3).train(samples(0))
    assert found["critic/value_mean"] == 0
    assert found["critic/clipfrac"] > 0
    assert learner(critic={"lr": 1e-2, "value_clip": 1e-3}).train(samples(0))["critic/clipfrac"] == 0


def test_flat_groups_and_single_samples_are_trained_on(learner: Make) -> None:
    """The critic is the baseline; no group is needed."""
    flat = rewarded(samples(0), lambda info: float(info.id.prompt.endswith("1")))
    found = learner().train(flat)
    assert found["reward/flat_groups"] == 1
    assert found["actor/tokens"] == sum(sample.info.length for sample in flat)
    assert found["actor/grad_norm"] > 0
    alone = [sample for sample in samples(0) if sample.info.id.index == 0]
    assert learner().train(alone)["actor/samples"] == len(alone)


def test_what_the_overlong_filter_leaves_out_teaches_neither_policy_nor_critic(learner: Make) -> None:
    cut = samples(0)  # the first sample of each group is cut
    made = [learner(overlong_filter=True) for _ in range(2)]
    made[0].train(cut)
    found = made[1].train(rewarded(cut, lambda info: 1e6 if info.id.index == 0 else cut_reward(cut, info)))
    assert equal(policy(made[0]), policy(made[1]))
    assert equal(values(made[0]), values(made[1]))
    assert found["critic/return_mean"] < 10


def test_the_critic_is_full_where_the_policy_has_adapters(learner: Make, tmp_path: Path) -> None:
    """And both come back from a checkpoint."""
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    made = learner(**lora)
    made.train(samples(0))
    made.save(tmp_path)
    again = learner(tmp_path, **lora)
    frozen = policy(again)
    assert equal(frozen, policy(made))
    for one in (made, again):
        one.train(samples(1))
    assert equal(policy(again), policy(made))
    assert equal(values(again), values(made))
    moved = {name for name, weight in policy(again).items() if not torch.equal(weight, frozen[name])}
    assert moved
    assert all("lora" in name for name in moved)
    assert all(parameter.requires_grad for parameter in again.critic.model.parameters())  # type: ignore[union-attr]


def test_the_critic_computes_as_the_policy_does(learner: Make) -> None:
    """Recomputed layers change no bit; bfloat16 changes the values, and neither weights nor moments are in it."""
    plain, lean, half = learner(), learner(gradient_checkpointing=True), learner(train_dtype="bfloat16")
    for made in (plain, lean, half):
        for step in range(2):
            made.train(samples(step))
    assert equal(values(lean), values(plain))
    differences = [(values(half)[name] - weight).abs().max() for name, weight in values(plain).items()]
    assert 0 < max(differences) < 1e-2
    assert {parameter.dtype for parameter in half.critic.model.parameters()} == {torch.float32}  # type: ignore[union-attr]


def cut_reward(given: list[StoredSample], info: SampleInfo) -> float | None:
    return next(sample.info.reward for sample in given if sample.info.id == info.id)


@pytest.mark.parametrize("given", [[], rewarded(samples(0), lambda info: None)])
def test_a_step_without_anything_to_train_is_a_step(learner: Make, given: list[StoredSample]) -> None:
    made = learner()
    before = policy(made), values(made)
    made.train(given)
    assert made.steps == 1
    assert equal(policy(made), before[0])
    assert equal(values(made), before[1])


@torch.no_grad()
def generated(learner: TorchLearner, prompts: list[list[int]], group: int, length: int) -> list[StoredSample]:
    """Responses of the policy as it is, scored by the share of their tokens that are below 132, half of all."""
    generator = torch.Generator().manual_seed(learner.steps)
    learner.policy.model.set_attn_implementation("sdpa")
    made = []
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt] * group)
        chosen: list[torch.Tensor] = []
        for _ in range(length):
            logp = learner.policy.model(ids).logits[:, -1].log_softmax(-1)
            token = torch.multinomial(logp.exp(), 1, generator=generator)
            chosen.append(logp.gather(1, token).squeeze(1))
            ids = torch.cat([ids, token], 1)
        for index in range(group):
            response = ids[index, len(prompt) :].numpy()
            info = SampleInfo(
                id=SampleId(learner.steps, f"{number:016x}", index),
                prompt_length=len(prompt),
                length=length,
                finish_reason="stop",
                versions=[(learner.steps, length)],
                reward=float((response < 132).mean()),
            )
            logprobs = torch.stack(chosen)[:, index].numpy()
            made.append(StoredSample(info, response.astype(np.uint32), logprobs, np.array(prompt, np.uint32)))
    learner.policy.model.set_attn_implementation(NAME)
    return made


def test_ppo_learns_a_task(learner: Make) -> None:
    """From a random policy, whose reward is a half, and a critic that knows nothing."""
    made = learner(lr=1e-2, kl_coef=0, minibatches=2, critic={"lr": 1e-2}, micro_tokens=4096)
    found = [made.train(generated(made, [[7, 8, 9], [20, 21]], 32, 6)) for _ in range(10)]
    rewards = [one["reward/mean"] for one in found]
    assert np.mean(rewards[:2]) < 0.62
    assert np.mean(rewards[-2:]) > 0.85, rewards
    assert found[0]["critic/value_mean"] == 0
    assert found[-1]["critic/value_mean"] > 0.5
