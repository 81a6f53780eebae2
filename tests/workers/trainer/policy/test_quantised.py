"""Adapters over a model of 4 bits: its numbers are those of the folder that the engine reads, and all else is as it
is over any other model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rhymed.check import memory
from rhymed.check.dryrun import missing_packages
from rhymed.check.lora import adapters
from rhymed.check.size import size_of_model
from rhymed.core.config import Config, Lora
from rhymed.core.errors import ConfigError, TrainerError
from rhymed.core.run import checkpoint
from rhymed.inputs import quantised as base
from rhymed.start.cli import main
from rhymed.start.cli.eval import evaluating
from rhymed_workers.lora.folder import digest, entries, read_about
from rhymed_workers.lora.merge import Adapter
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy import quantised
from rhymed_workers.trainer.policy.backbone import Compute, load_model
from rhymed_workers.trainer.policy.lora import LoraPolicy
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches
from tests.packages import needs
from tests.workers.trainer.test_learner import equal, samples, untimed, weights

pytestmark = [needs("peft"), needs("bitsandbytes")]

LORA = Lora(rank=4, alpha=8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def config(model: Path, dtype: str = "float32", **trainer: Any) -> Config:
    settings = {"lr": 1e-2, "micro_tokens": 40, "lora": {"rank": 4, "alpha": 8}, **trainer}
    rollout = {"max_response_length": 64, "max_prompt_length": 64, "prompts_per_step": 3, "group_size": 4}
    path = {"path": str(model), "dtype": dtype, "quantization": "nf4"}
    return Config.model_validate({"model": path, "trainer": settings, "rollout": rollout})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_that_were_there_and_back_stay(dtype: str) -> None:
    """Also where a block is zero, and where a row ends within one."""
    weight = torch.randn(96, 72, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    weight[3:6] = 0
    once = base.there_and_back(weight)
    assert not torch.equal(once, weight)
    assert (once - weight).abs().mean() < 0.1
    assert torch.equal(base.there_and_back(once), once)


@pytest.mark.parametrize(
    ("dtype", "computed"), [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_the_policy_is_the_model_in_the_engine_s_folder(tiny_model: Path, dtype: str, computed: str) -> None:
    """Log-probs and gradients, bit for bit."""
    folder = base.base_of(config(tiny_model, dtype))
    assert base.base_of(config(tiny_model, dtype)) == folder, "made once"
    assert {name: one.shape for name, one in entries(folder).items()} == {
        name: one.shape for name, one in entries(tiny_model).items()
    }
    compute = Compute(dtype=computed)  # type: ignore[arg-type]
    four, plain = (
        LoraPolicy(LORA, folder, compute=compute, model=load_model(folder, compute, quantised=bits))
        for bits in (True, False)
    )
    layers = [module for module in four.model.modules() if isinstance(module, quantised.Nf4Linear)]
    assert len(layers) == len(four.about.layers) == 14
    assert all(len(layer.weight.data.view(-1)) == layer.in_features * layer.out_features // 2 for layer in layers)
    rows = [Sequences(torch.arange(5, 12).numpy(), torch.arange(30, 30 + 6 * size).numpy()) for size in (1, 2)]
    found = []
    for policy in (four, plain):
        for parameter in policy.adapters().values():
            parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(3))
        (batch,) = micro_batches(rows, range(2), 256, grade=policy.grade)
        logprobs = policy.logprobs(batch)
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: (logp_N.exp() * torch.cos(flat_N)).sum())
        found.append([logprobs, *(parameter.grad for parameter in policy.trained())])
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True))
    with four.switched_off():
        assert not torch.equal(four.logprobs(batch), found[0][0])


def test_a_run_resumes_to_the_bit_and_trains_adapters_only(tiny_model: Path, tmp_path: Path) -> None:
    def restore(folder: Path | None = None) -> TorchLearner:
        return TorchLearner.restore(config(tiny_model, kl_coef=0.1), folder)

    straight = restore()
    frozen = {name: one for name, one in weights(straight).items() if ".lora_" not in name}
    expected = [straight.train(samples(step)) for step in range(4)]
    assert equal({name: one for name, one in weights(straight).items() if ".lora_" not in name}, frozen)
    first = restore()
    for step in range(2):
        first.train(samples(step))
    first.save(tmp_path)
    second = restore(tmp_path)
    found = [second.train(samples(step)) for step in range(2, 4)]
    assert equal(weights(second), weights(straight))
    assert [untimed(one) for one in found] == [untimed(one) for one in expected[2:]]


def test_its_adapter_belongs_to_the_model_in_4_bits(tiny_model: Path, tmp_path: Path, capsys: Any) -> None:
    """The file says so, `--merged` merges it there, and the model that it was made of is another one."""
    run, settings = tmp_path / "run", config(tiny_model)
    run.mkdir()
    (run / "config.json").write_text(settings.model_dump_json())
    learner = TorchLearner.restore(settings, None)
    learner.train(samples(0))

    checkpoint.save(run / "checkpoints", 1, learner.save, keep=2)
    saved = run / "checkpoints" / "step-000001" / "adapter_model.safetensors"
    about, folder = read_about(saved), base.base_of(settings)
    assert about is not None
    assert about.digest == digest(folder) != digest(tiny_model)
    assert main(["checkpoint", "export", str(run), str(tmp_path / "out"), "--merged", "--dtype", "float32"]) == 0
    merged = load_model(tmp_path / "out").state_dict()
    for name, tensor in Adapter(saved).merged(folder):
        assert torch.equal(merged[name], tensor), name
    with pytest.raises(ConfigError, match="has the digest"):
        TorchLearner.restore(
            config(tiny_model, lora={"rank": 4, "alpha": 8, "adapter": str(saved.parent)}).model_copy(
                update={"model": settings.model.model_copy(update={"quantization": ""})}
            ),
            None,
        )
    tree = settings.model_dump() | {"eval": {"every": 1, "datasets": [{"name": "a", "path": "a.jsonl"}]}}
    evaluated = Config.model_validate(tree)
    latest = evaluating(evaluated, str(saved.parent))
    assert (latest.model.path, latest.model.quantization) == (str(tiny_model), "nf4")
    assert evaluating(evaluated, str(tmp_path / "out")).model.quantization == "", "it is not made 4 bits again"


def test_a_folder_that_was_made_elsewhere_otherwise_is_refused(tiny_model: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = base.base_of(config(tiny_model))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 1] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"layers\.1\.mlp\.up_proj in 4 bits is not what .* has"):
        LoraPolicy(LORA, folder, model=load_model(folder, quantised=True))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lora": None}, "weights of 4 bits cannot be trained: add [trainer.lora]"),
        ({"gpus": 2, "device": "cuda"}, "is for one rank, and there are 2"),
    ],
)
def test_what_4_bits_cannot_do_is_refused(tiny_model: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match="quantization = 'nf4'") as refused:
        config(tiny_model, **settings)
    assert why in str(refused.value)


def test_without_the_library_it_is_a_sentence_before_anything_starts(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LIBRARY", "bitsandbytes_of_nobody")
    why = r"model\.quantization = 'nf4' needs the package .*pip install 'rhymed\[bitsandbytes\]'"
    with pytest.raises(ConfigError, match=why):
        base.base_of(config(tiny_model))
    assert any("model.quantization = 'nf4' needs" in one for one in missing_packages(config(tiny_model)))


def test_weights_that_are_quantised_already_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    import shutil

    model = shutil.copytree(tiny_model, tmp_path / "gptq")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ConfigError, match=r"are quantised already \(gptq\)"):
        base.base_of(config(model))


def test_check_counts_4_bits(tiny_model: Path) -> None:
    size, found = size_of_model(tiny_model), adapters(LORA, tiny_model)
    four, plain = (
        memory.lora_weights(config(tiny_model).model.model_copy(update={"quantization": kind}), size, found)
        for kind in ("nf4", "")
    )
    assert plain - four == (4 - 0.5 - 4 / 64) * found.frozen
