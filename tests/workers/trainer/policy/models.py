"""Tiny models of several architectures, with random weights in float64."""

from __future__ import annotations

from typing import Any

import torch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 9},
    "gemma3_text": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "mixtral": {"num_local_experts": 2},
    "gpt_neox": {"head_dim": None, "num_key_value_heads": None},
}
STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
OTHERS: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.3, "sliding_window": 7},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 7},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"],
        "attention_chunk_size": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 24,
        "interleave_moe_layer_step": 2,
    },
    "bloom": {"n_head": 4},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        **STATES,
    },
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"], **STATES},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
        "lm_head_multiplier": 3.0,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 8,
    },
}
"""Those that cannot be packed."""


def build(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {**SIZES, **KINDS.get(kind, {}), **OTHERS.get(kind, {}), **changes}
    config = AutoConfig.for_model(kind, **{name: value for name, value in sizes.items() if value is not None})
    return AutoModelForCausalLM.from_config(config).double()
