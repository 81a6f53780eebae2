"""Which layers get an adapter, and what is said about a choice that no model can follow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Lora
from rhymed.core.errors import ConfigError
from rhymed.inputs import quantised

pytest.importorskip("torch")

from rhymed_workers.lora.folder import digest, short_names
from rhymed_workers.lora.layers import chosen, outline, parameters
from tests.workers.trainer.policy.models import build


def test_all_linear_layers_but_the_head(tiny_model: Path) -> None:
    model = outline(tiny_model)
    layers = chosen(model, tiny_model, Lora(rank=4))
    assert len(layers) == 14
    assert layers["model.layers.1.mlp.up_proj"] == "model.layers.1.mlp.up_proj.weight"
    per_layer = 4 * (64 + 64) + 2 * (64 + 128) + (128 + 64)
    assert parameters(model, layers, 4) == 2 * 4 * per_layer
    assert all(parameter.is_meta for parameter in model.parameters()), "nothing was loaded"


@pytest.mark.parametrize(
    ("targets", "count"),
    [(["q_proj"], 2), (["mlp.up_proj", "q_proj"], 4), (["model.layers.0.self_attn.q_proj"], 1), ("all-linear", 14)],
)
def test_targets_are_names_or_their_last_parts(tiny_model: Path, targets: Any, count: int) -> None:
    assert len(chosen(outline(tiny_model), tiny_model, Lora(rank=4, targets=targets))) == count


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            {"targets": ["q_prj"]},
            "'q_prj' is no layer of this model; did you mean q_proj.*linear layers: down_proj,",
        ),
        ({"targets": ["query_key_value"]}, r"'query_key_value' is no layer of this model \(linear layers: down_proj"),
        ({"targets": ["lm_head"]}, "'lm_head' is the output head"),
        ({"targets": ["embed_tokens"]}, "'embed_tokens' is a Embedding, not a plain linear layer"),
        ({"rank": 65}, r"rank = 65 is larger than layer .*q_proj, which has 64 inputs and 64 outputs: at most 64"),
    ],
)
def test_a_choice_that_cannot_be_followed_is_a_sentence(tiny_model: Path, lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(outline(tiny_model), tiny_model, Lora(**lora))


def test_quantised_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((tiny_model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"quantised \(gptq\), and an adapter cannot be merged"):
        chosen(outline(tiny_model), tmp_path / "model", Lora())


def test_a_model_without_plain_linear_layers_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="GPT2LMHeadModel has no linear layers"):
        chosen(outline(tmp_path), tmp_path, Lora())


def test_layers_have_their_names_of_the_folder(tmp_path: Path) -> None:
    """transformers renames parts of GPT-NeoX and merges the experts of Mixtral, which are no linear layers then."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, MixtralConfig, MixtralForCausalLM

    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    GPTNeoXForCausalLM(GPTNeoXConfig(num_hidden_layers=1, **small)).save_pretrained(tmp_path / "neox")
    layers = chosen(outline(tmp_path / "neox"), tmp_path / "neox", Lora(rank=4))
    assert {name.rpartition(".")[2] for name in layers} == {
        "query_key_value",
        "dense",
        "dense_h_to_4h",
        "dense_4h_to_h",
    }
    config = MixtralConfig(num_hidden_layers=1, num_key_value_heads=2, num_local_experts=2, **small)
    MixtralForCausalLM(config).save_pretrained(tmp_path / "mixtral")
    layers = chosen(outline(tmp_path / "mixtral"), tmp_path / "mixtral", Lora(rank=2))
    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_a_gate_with_one_output_has_no_adapter_unless_it_is_named(tmp_path: Path) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "head_dim": 16}
    experts = {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    config = Qwen2MoeConfig(num_hidden_layers=1, num_key_value_heads=2, **sizes, **experts)
    Qwen2MoeForCausalLM(config).save_pretrained(tmp_path)
    kinds = {name.rpartition(".")[2] for name in chosen(outline(tmp_path), tmp_path, Lora(rank=4))}
    assert "shared_expert_gate" not in kinds
    assert {"q_proj", "o_proj", "gate_proj", "down_proj"} <= kinds
    with pytest.raises(ConfigError, match=r"rank = 4 is larger than layer .*shared_expert_gate, .* at most 1"):
        chosen(outline(tmp_path), tmp_path, Lora(rank=4, targets=["shared_expert_gate"]))


def test_a_router_that_gives_two_outputs_has_no_adapter(tmp_path: Path) -> None:
    build("llama4_text", num_local_experts=8).save_pretrained(tmp_path)
    kinds = {name.rpartition(".")[2] for name in chosen(outline(tmp_path), tmp_path, Lora(rank=4))}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert not [name for name in quantised.layers(outline(tmp_path)) if name.endswith("router")], "nor 4 bits"
    with pytest.raises(ConfigError, match="'router' is a Llama4Router, not a plain linear layer"):
        chosen(outline(tmp_path), tmp_path, Lora(rank=4, targets=["router"]))


def test_a_linear_layer_of_a_models_own_class_has_an_adapter(tmp_path: Path) -> None:
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2}
    FalconForCausalLM(FalconConfig(num_hidden_layers=1, **sizes)).save_pretrained(tmp_path)
    assert chosen(outline(tmp_path), tmp_path, Lora(rank=4))


def test_weights_that_a_kernel_reads_by_itself_have_no_adapter(tmp_path: Path) -> None:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    build("falcon_h1", num_hidden_layers=1, **sizes).save_pretrained(tmp_path)
    kinds = {name.rpartition(".")[2] for name in chosen(outline(tmp_path), tmp_path, Lora(rank=4))}
    assert {"in_proj", "o_proj", "q_proj"} <= kinds
    assert "out_proj" not in kinds
    with pytest.raises(ConfigError, match=r"kernels of FalconH1ForCausalLM read the weight of .*mamba.out_proj"):
        chosen(outline(tmp_path), tmp_path, Lora(rank=4, targets=["out_proj"]))


def test_a_digest_is_of_the_content_and_not_of_the_files(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.save_pretrained(tmp_path / "parts", max_shard_size="100KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert digest(tmp_path / "parts") == digest(tiny_model)
    tensors = load_file(tiny_model / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    (tmp_path / "other").mkdir()
    save_file(tensors, tmp_path / "other" / "model.safetensors")
    assert digest(tmp_path / "other") != digest(tiny_model)


def test_a_model_that_is_edited_in_place_has_another_digest(tiny_model: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "edited").mkdir()
    file = shutil.copy(tiny_model / "model.safetensors", folder)
    before = digest(folder)
    assert digest(folder) == before
    with open(file, "r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))
    assert digest(folder) != before


def test_short_names_match_the_chosen_layers_only() -> None:
    assert short_names(["a.0.q", "a.1.q", "a.0.k"], ["lm_head", "a.1.v"]) == ["k", "q"]
    assert short_names(["a.0.q"], ["a.1.q"]) == ["a.0.q"]
