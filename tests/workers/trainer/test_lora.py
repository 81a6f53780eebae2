"""Of a policy with adapters only these are trained, published and kept, and PEFT agrees on what they mean."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rhymed.core.config import Config, Lora
from rhymed.core.errors import CheckpointError, ConfigError
from rhymed_workers.lora.merge import Adapter, add
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.lora import LoraPolicy
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.publish import Publisher
from tests.packages import needs
from tests.workers.trainer.policy.models import build
from tests.workers.trainer.test_learner import equal, samples, untimed, weights

pytestmark = needs("peft")

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LAYERS = 2


@pytest.fixture
def restore(tiny_model: Path) -> Callable[..., TorchLearner]:
    """A learner from the beginning, or from a checkpoint."""

    def make(folder: Path | None = None, *, lora: dict[str, Any] | None = None, **settings: Any) -> TorchLearner:
        trainer = {"lr": 1e-2, "weight_decay": 0.01, "micro_tokens": 40, **settings}
        trainer["lora"] = {"rank": 4, "alpha": 8, **(lora or {})}
        tree = {"model": {"path": str(tiny_model)}, "trainer": trainer, "rollout": {"max_response_length": 64}}
        tree["rollout"] |= {"max_prompt_length": 64, "prompts_per_step": 3, "group_size": 4}
        return TorchLearner.restore(Config.model_validate(tree), folder)

    return make


def frozen(learner: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights(learner).items() if ".lora_" not in name}


def test_a_step_changes_the_adapters_and_nothing_else(restore: Callable[..., TorchLearner]) -> None:
    learner = restore()
    before, adapters = frozen(learner), {name: one.clone() for name, one in learner.tensors().items()}
    assert len(adapters) == 2 * len(LINEAR) * LAYERS, "every linear layer but the head"
    learner.train(samples(0))
    learner.train(samples(1))
    assert equal(frozen(learner), before)
    assert all(not torch.equal(tensor, adapters[name]) for name, tensor in learner.tensors().items())
    gradients = [name for name, one in learner.policy.model.named_parameters() if one.requires_grad]
    assert all(".lora_" in name for name in gradients), "neither the frozen head nor the embeddings tied to it"
    assert len(learner._optimizer.state) == len(adapters)


def test_the_head_collects_no_gradient(restore: Callable[..., TorchLearner]) -> None:
    learner = restore()
    seen = []
    learner._optimize = lambda loss, sums: seen.append(  # type: ignore[method-assign]
        {name for name, one in learner.policy.model.named_parameters() if one.grad is not None}
    )
    learner.train(samples(0))
    assert seen
    assert all(".lora_" in name for names in seen for name in names)


@pytest.mark.parametrize("settings", [{}, {"minibatches": 3, "kl_coef": 0.1}])
def test_two_and_two_steps_are_four_steps_to_the_bit(
    restore: Callable[..., TorchLearner], tmp_path: Path, settings: dict[str, Any]
) -> None:
    straight = restore(**settings)
    expected = [straight.train(samples(step)) for step in range(4)]
    first = restore(**settings)
    for step in range(2):
        first.train(samples(step))
    first.save(tmp_path)
    torch.manual_seed(99)
    second = restore(tmp_path, **settings)
    assert second.steps == 2
    found = [second.train(samples(step)) for step in range(2, 4)]
    assert equal(weights(second), weights(straight))
    for mine, other in zip(found, expected[2:], strict=True):
        assert untimed(mine) == untimed(other)


def test_new_adapters_depend_on_the_seed_alone(restore: Callable[..., TorchLearner]) -> None:
    torch.manual_seed(1)
    one = restore().tensors()
    torch.manual_seed(2)
    assert equal(one, restore().tensors())
    assert all(bool((tensor == 0).all()) == (".lora_B." in name) for name, tensor in one.items())


def test_equal_adapters_are_equal_files(restore: Callable[..., TorchLearner], tmp_path: Path) -> None:
    learner, found = restore(), set()
    for number in range(8):
        (folder := tmp_path / str(number)).mkdir()
        learner.save(folder)
        found.add((folder / "adapter_model.safetensors").read_bytes())
    assert len(found) == 1


def test_the_reference_is_the_model_without_its_adapters(restore: Callable[..., TorchLearner]) -> None:
    """In the first step the policy still is the reference; later it is not, and the reference has not moved."""
    learner = restore(kl_coef=0.1)
    assert learner.train(samples(0))["actor/kl"] == pytest.approx(0, abs=1e-6)
    assert learner.train(samples(1))["actor/kl"] > 1e-4
    assert isinstance(learner.policy, LoraPolicy)
    assert all(one.requires_grad for one in learner.policy.adapters().values()), "they are switched on again"


def test_engines_merge_the_bits_of_peft(
    restore: Callable[..., TorchLearner], tiny_model: Path, tmp_path: Path
) -> None:
    """From the published file, and from the checkpoint, in float32; PEFT reads the checkpoint."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = restore()
    for step in range(2):
        learner.train(samples(step))
    (tmp_path / "checkpoint").mkdir()
    learner.save(tmp_path / "checkpoint")
    publisher = Publisher(tmp_path / "weights", learner.dtype)
    published = publisher.publish(2, learner.tensors().items(), learner.metadata()).path
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    start = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    expected = PeftModel.from_pretrained(base, tmp_path / "checkpoint").merge_and_unload().state_dict()
    for file in (published, tmp_path / "checkpoint" / "adapter_model.safetensors"):
        found = dict(Adapter(file).merged(tiny_model))
        assert set(found) == set(load_file(tiny_model / "model.safetensors"))
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), name
            assert torch.equal(tensor, start[name]) == (name.split(".")[-2] not in LINEAR)
    assert published.stat().st_size < (tiny_model / "model.safetensors").stat().st_size / 2
    publisher.close()


MERGE = """
import hashlib, sys, torch
from pathlib import Path
from rhymed_workers.lora.merge import Adapter
torch.set_num_threads(int(sys.argv[3]))
whole = hashlib.blake2b()
for name, tensor in sorted(Adapter(Path(sys.argv[1])).merged(Path(sys.argv[2]))):
    whole.update(name.encode() + tensor.numpy().tobytes())
print(whole.hexdigest())
"""


def test_every_process_merges_the_same_bits(
    restore: Callable[..., TorchLearner], tiny_model: Path, tmp_path: Path
) -> None:
    """Whatever its number of threads."""
    learner = restore()
    learner.train(samples(0))
    learner.save(tmp_path)
    file, whole = tmp_path / "adapter_model.safetensors", hashlib.blake2b()
    for name, tensor in sorted(Adapter(file).merged(tiny_model)):
        whole.update(name.encode() + tensor.numpy().tobytes())
    threads = 2 if torch.get_num_threads() == 1 else 1
    command = [sys.executable, "-c", MERGE, str(file), str(tiny_model), str(threads)]
    there = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert there.stdout.strip() == whole.hexdigest()


def test_a_merge_is_rounded_once() -> None:
    """A small difference to a large weight, in bfloat16: as float32 rounds it, not as a sum of rounded parts."""
    weight, a, b = torch.tensor([[1.0]], dtype=torch.bfloat16), torch.tensor([[1.0]]), torch.tensor([[0.0039]])
    assert add(weight, a, b, 0.5).item() == pytest.approx(1.00195)
    assert add(weight, a, b, 1.5).to(torch.bfloat16).item() == 1.0078125


def test_training_goes_on_from_an_adapter(restore: Callable[..., TorchLearner], tmp_path: Path) -> None:
    first = restore()
    first.train(samples(0))
    (tmp_path / "kept").mkdir()
    first.save(tmp_path / "kept")
    again = restore(lora={"adapter": str(tmp_path / "kept")})
    assert again.steps == 0
    assert equal(again.tensors(), first.tensors())
    with pytest.raises(ConfigError, match=r"trainer\.lora\.rank = 8, but the adapter .* has 4: set it to that"):
        restore(lora={"rank": 8, "adapter": str(tmp_path / "kept")})
    with pytest.raises(ConfigError, match=r"does not fit trainer\.lora, first .*down_proj.*, not there here"):
        restore(lora={"targets": ["q_proj"], "adapter": str(tmp_path / "kept")})


def test_a_checkpoint_of_another_model_or_rank_is_refused(
    restore: Callable[..., TorchLearner], tiny_model: Path, tmp_path: Path
) -> None:
    learner = restore()
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"is multiplied by 2, trainer\.lora says 1$"):
        restore(tmp_path, lora={"rank": 8})
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (4, 8.0, sorted(LINEAR))
    assert settings["base_model_name_or_path"] == str(tiny_model)
    assert isinstance(learner.policy, LoraPolicy)
    object.__setattr__(learner.policy.about, "digest", "0" * 32)
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"is LoRA of rank 4 over .*digest 0{32}.* has the digest"):
        restore(tmp_path)


@pytest.mark.parametrize("algorithm", ["gspo", "rloo", "ppo", "cispo"])
def test_every_kind_of_algorithm_trains_adapters(restore: Callable[..., TorchLearner], algorithm: str) -> None:
    """A critic is a model of its own, and is trained whole."""
    learner = restore(algorithm=algorithm)
    before, adapters = frozen(learner), {name: one.clone() for name, one in learner.tensors().items()}
    for step in range(2):
        learner.train(samples(step))
    assert equal(frozen(learner), before)
    assert all(not torch.equal(tensor, adapters[name]) for name, tensor in learner.tensors().items())
    assert (learner.critic is not None) == (algorithm == "ppo")


@pytest.mark.parametrize(("compute", "close"), [(Compute(checkpointing=True), 0.0), (Compute(dtype="bfloat16"), 0.1)])
def test_adapters_get_their_gradient_however_the_model_computes(
    tiny_model: Path, compute: Compute, close: float
) -> None:
    """Layers computed twice give the same bits; bfloat16 is near, and the adapters stay float32."""
    lora, sequences = Lora(rank=4), [Sequences(np.arange(2, 8), np.arange(10, 30))]
    (batch,) = micro_batches(sequences, [0], 64)
    found = []
    for policy in (LoraPolicy(lora, tiny_model), LoraPolicy(lora, tiny_model, compute=compute)):
        generator = torch.Generator().manual_seed(0)
        for parameter in policy.adapters().values():
            parameter.data.normal_(0, 0.1, generator=generator)
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: -logp_N.sum())
        found.append(policy.adapters())
    for name, parameter in found[0].items():
        mine, other = parameter.grad, found[1][name].grad
        assert mine is not None
        assert other is not None
        assert other.dtype == torch.float32
        assert float((mine - other).norm()) <= close * float(mine.norm()), name


def test_frozen_layers_are_rounded_once(tiny_model: Path) -> None:
    """In bfloat16, with the bits of rounding them in every pass; what is not a matrix product stays float32."""
    (batch,) = micro_batches([Sequences(np.arange(2, 8), np.arange(10, 30))], [0], 64)
    once, always = (LoraPolicy(Lora(rank=4), tiny_model, compute=Compute(dtype="bfloat16")) for _ in range(2))
    assert once.head.weight_VH.dtype == torch.float32
    halves = {name for name, one in once.model.named_parameters() if one.dtype == torch.bfloat16}
    assert {name.removesuffix(".base_layer.weight") for name in halves} == set(once.about.layers)
    for name, parameter in always.model.named_parameters():
        if name in halves:
            parameter.data = Policy.load(tiny_model).model.get_parameter(name.replace(".base_layer", "")).data
    assert torch.equal(once.logprobs(batch), always.logprobs(batch))


def test_a_shared_expert_has_adapters_of_its_own(tmp_path: Path) -> None:
    build("qwen3_next").float().save_pretrained(tmp_path)
    policy = LoraPolicy(Lora(rank=4), tmp_path)
    layers = {name.rpartition(".lora_")[0] for name in policy.adapters()}
    assert "base_model.model.model.layers.0.mlp.shared_expert.gate_proj" in layers
    assert {name for name, one in policy.model.named_parameters() if one.requires_grad} == {
        name for name, _ in policy.model.named_parameters() if ".lora_" in name
    }, "and nothing else has one"
