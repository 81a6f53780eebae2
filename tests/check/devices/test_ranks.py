"""What `rhymed check` estimates for each rank of a trainer, against what ranks on processors take."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rhymed.check import arithmetic, memory
from rhymed.check.memory import Models, Needs
from rhymed.check.size import size_of_model
from rhymed.core.config import Config
from tests.check.devices.measured import measure
from tests.check.test_memory import LARGE, SIZE

SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def needs(tree: dict[str, Any], folder: Path) -> Needs:
    config = Config.model_validate(tree)
    load = arithmetic.workload(config.rollout, config.trainer, 8, config.rollout.max_prompt_length)
    return memory.needs(config, Models(size_of_model(folder)), load)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("sparing", [False, True], ids=["all kept", "checkpointing"])
def test_each_rank_takes_about_what_was_estimated(tiny_model: Path, tmp_path: Path, sparing: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=sparing)).save_pretrained(tmp_path / "model")
    for file in tiny_model.glob("token*"):
        shutil.copy(file, tmp_path / "model")
    for ranks in (1, 2):
        tree = {
            "model": {"path": str(tmp_path / "model"), "dtype": "float32"},
            "trainer": {
                "lr": 1e-5,
                "device": "cpu",
                "ranks": ranks,
                "threads": 1,
                "micro_tokens": 1200,
                "gradient_checkpointing": sparing,
            },
            "rollout": {
                "prompts_per_step": 2,
                "group_size": 2,
                "max_prompt_length": 64,
                "max_response_length": 512,
            },
        }
        need = needs(tree, tmp_path / "model")
        estimated = need.kept + need.working
        for found in measure(ranks, tree, tmp_path):
            assert 0.85 < estimated / found["peak"] < 1.3, (ranks, found, estimated, need)
            assert found["kept"] < estimated - need.working + 64e6


def test_ranks_share_models_but_no_pass() -> None:
    one, two = (
        memory.needs(config, Models(SIZE), arithmetic.workload(config.rollout, config.trainer, 64, 100))
        for config in (Config.model_validate({"trainer": {"device": "cpu", "ranks": ranks}}) for ranks in (1, 2))
    )
    assert two.models == one.models
    assert two.kept == one.kept / 2
    assert two.working > one.working, "with layers that are gathered, and gradients that are not summed yet"
    assert two.kept + two.working < one.kept + one.working
    config = Config.model_validate({"trainer": {"device": "cpu", "ranks": 2}})
    rows = dict(memory.describe(config, Models(SIZE), two, LARGE).rows)
    words = "each of 2 ranks: weights 1.9 GiB, gradients 1.9 GiB, optimizer 3.7 GiB, the largest pass"
    assert rows["trainer"].startswith(words)
