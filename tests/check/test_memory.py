from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rhymed.check import arithmetic, memory
from rhymed.check.memory import Machine, Models
from rhymed.check.report import GIB, Section
from rhymed.check.size import Size, size_of_model
from rhymed.core.config import Config, Trainer
from rhymed.core.errors import ConfigError

SIZE = Size(
    "LlamaForCausalLM",
    hidden=2048,
    layers=16,
    heads=32,
    key_value_heads=8,
    head=64,
    intermediate=8192,
    experts=1,
    vocabulary=128_256,
    counted=1_000_000_000,
)
LARGE = Machine(memory=64 * GIB, memory_free=60 * GIB, shared_free=32 * GIB, disk_free=200 * GIB)


def describe(config: Config, machine: Machine) -> Section:
    return memory.describe(config, Models(SIZE), needs(config, Models(SIZE)), machine)


def needs(config: Config, models: Models) -> memory.Needs:
    return memory.needs(config, models, arithmetic.workload(config.rollout, config.trainer, 64, 100))


def check(machine: Machine, **trainer: object) -> tuple[dict[str, str], list[str], list[str]]:
    held_out = {"every": 5, "datasets": [{"name": "a", "path": "a.jsonl"}]}
    section = describe(Config.model_validate({"trainer": trainer, "eval": held_out}), machine)
    return dict(section.rows), section.errors, section.warnings


def test_a_large_machine_is_large_enough() -> None:
    rows, errors, warnings = check(LARGE)
    assert (errors, warnings) == ([], [])
    assert rows["model"] == "LlamaForCausalLM, 1,000.0 M parameters"
    assert "weights 3.7 GiB, gradients 3.7 GiB, optimizer 7.5 GiB" in rows["trainer"]
    assert "reference" not in rows["trainer"]
    assert rows["disk"].startswith("3 checkpoints of 11.2 GiB, store at most 6.2 MiB; ")


def test_sums_of_groups_count() -> None:
    assert "weights 3.7 GiB, gradients 11.2 GiB, optimizer 7.5 GiB" in check(LARGE, overlap=True)[0]["trainer"]


def test_a_reference_model_counts() -> None:
    assert "reference model 3.7 GiB" in check(LARGE, kl_coef=0.1)[0]["trainer"]


def test_a_critic_counts_like_the_policy() -> None:
    config = Config.model_validate({"trainer": {"algorithm": "ppo"}})
    alone, both = (needs(config, Models(SIZE, critic=one)) for one in (None, SIZE))
    own = sum(both.models[name] for name in ("weights", "gradients", "optimizer"))
    assert both.models["critic"] == own == pytest.approx(both.kept - alone.kept)
    assert both.copied == both.checkpoint
    assert both.checkpoint == 2 * alone.checkpoint
    assert both.working == alone.working
    assert "reference model 3.7 GiB, critic 14.9 GiB" in str(both)


def test_the_store_keeps_the_groups_that_dynamic_sampling_replaces() -> None:
    (plain, _, _), (dapo, _, _) = check(LARGE), check(LARGE, algorithm="dapo")
    assert "store at most 6.2 MiB" in plain["disk"]
    assert "store at most 32 MiB" in dapo["disk"], "8 times the samples, as many log-probs"


@pytest.mark.parametrize(
    ("change", "key"),
    [({"memory": 8 * GIB}, "rollout.kv_cache_gib"), ({"disk_free": 3 * GIB}, "trainer.keep_checkpoints")],
)
def test_what_cannot_work_must_be_changed(change: dict[str, int], key: str) -> None:
    _, errors, _ = check(replace(LARGE, **change))
    assert len(errors) == 1
    assert key in errors[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory_free": 8 * GIB}, "trainer.micro_tokens"),
        ({"shared_free": GIB}, "through the run's folder"),
        ({"disk_free": 36_000_000_001}, "3 checkpoints of 11.2 GiB and the store take"),
    ],
)
def test_what_may_be_too_little_is_a_warning(change: dict[str, int], words: str) -> None:
    _, errors, warnings = check(replace(LARGE, **change))
    assert errors == []
    assert [words in text for text in warnings] == [True]


def test_attention_that_makes_all_scores_is_counted() -> None:
    config = Config()
    load = replace(arithmetic.workload(config.rollout, config.trainer, 64, 100), pass_tokens=4096, width=2048)
    kept, sparing = (
        memory.pass_bytes(config.model, trainer, replace(SIZE, scores=True), load)
        - memory.pass_bytes(config.model, trainer, SIZE, load)
        for trainer in (Trainer(gradient_checkpointing=one) for one in (False, True))
    )
    square = 4096 * 2048 * SIZE.heads * 4
    assert kept == (3 * SIZE.layers + 2) * square
    assert sparing == 5 * square


def test_the_best_checkpoint_takes_disk_too() -> None:
    """With 11.2 GiB each, five need 56 GiB and three 33.6."""
    _, errors, _ = check(replace(LARGE, disk_free=50 * GIB), keep_best=True)
    (error,) = errors
    assert "disk: 5 checkpoints of 11.2 GiB and the store take 55.9 GiB" in error
    assert "set trainer.keep_best = false" in error
    assert check(replace(LARGE, disk_free=50 * GIB))[1:] == ([], [])
    (warning,) = check(replace(LARGE, disk_free=60_000_000_001), keep_best=True)[2]
    assert "set trainer.keep_best = false" in warning


def test_a_cache_that_holds_no_sample_must_be_changed() -> None:
    config = Config.model_validate({"rollout": {"kv_cache_gib": 0.02, "max_prompt_length": 500}})
    section = describe(config, LARGE)
    assert len(section.errors) == 1
    assert "max_response_length = 1012 tokens needs 32 MiB" in section.errors[0]
    assert dict(section.rows)["engines"].endswith("libraries; 0 samples at full length")


def test_logits_are_bounded_as_the_trainer_bounds_them() -> None:
    head = pytest.importorskip("rhymed_workers.trainer.policy.head")
    names = ("LOGITS_BYTES", "GPU_LOGITS_BYTES", "GPU_ROWS_BYTES")
    assert [getattr(head, name) for name in names] == [getattr(memory, name) for name in names]


def test_a_gpu_makes_larger_slices_of_logits() -> None:
    config, size = Config.model_validate({"trainer": {"micro_tokens": 8192}}), replace(SIZE, vocabulary=151_936)
    load = replace(arithmetic.workload(config.rollout, config.trainer, 64, 100), pass_tokens=8192)
    cpu, gpu = (memory.pass_bytes(config.model, config.trainer, size, load, gpu=gpu) for gpu in (False, True))
    assert gpu - cpu == (1024 + 4 * 128 - 256) * 2**20


def test_published_versions_are_those_of_the_trainer() -> None:
    weights = pytest.importorskip("rhymed_workers.trainer.publish")
    assert weights.KEEP + 1 == memory.VERSIONS


def test_gpt_2_s_names_are_read_like_llama_s(tmp_path: Path) -> None:
    names = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50_257}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], **names}))
    size = size_of_model(tmp_path, weights=False)
    assert (size.hidden, size.layers, size.heads, size.key_value_heads) == (768, 12, 12, 12)
    assert (size.head, size.intermediate, size.vocabulary) == (64, 3072, 50_257)


def test_the_size_is_read_from_headers(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    size = size_of_model(tiny_model)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (size.architecture, size.layers, size.hidden) == ("LlamaForCausalLM", 2, 64)
    assert size.key_value_heads * size.head == 64


def test_a_tied_head_counts_once(tmp_path: Path) -> None:
    tensors = {"a": np.zeros((2, 3), np.float32), "lm_head.weight": np.zeros((5, 3), np.float32)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "hidden_size": 3}))
    assert size_of_model(tmp_path).parameters == 6


def test_weights_in_another_layout_do_not_count(tmp_path: Path) -> None:
    """Some models have all weights twice; the index names the files of one layout."""
    for name in ("model-00001-of-00001", "consolidated"):
        save_file({f"{name}.weight": np.zeros((2, 3), np.float32)}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"model-00001-of-00001.weight": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 3}))
    assert size_of_model(tmp_path).parameters == 6


NO_SHAPE = json.dumps({"a": {"dtype": "F32"}}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 20, (5).to_bytes(8, "little") + b"{", len(NO_SHAPE).to_bytes(8, "little") + NO_SHAPE],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is no readable safetensors file"):
        size_of_model(tmp_path)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json cannot be read"):
        size_of_model(tmp_path)
