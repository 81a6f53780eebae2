"""A two-layer Llama with random weights and a byte-level tokenizer: a real model that trains in a test.

Head size 32 is one that vLLM's CPU attention knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_tiny_model(folder: Path, hidden: int = 64, layers: int = 2, positions: int = 512) -> None:
    """As a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<eos>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary) + 6,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def write_sharp_model(tiny: Path, folder: Path, ends: Sequence[int] = (1,)) -> None:
    """The tiny model in `tiny` with larger weights: what it says depends on all that it was told, and is not all
    noise. `ends`: tokens that end a response."""
    import torch
    from transformers import LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    network.config.eos_token_id = network.generation_config.eos_token_id = list(ends)
    network.save_pretrained(folder)


def write_eagle_head(target: Path, folder: Path, vocabulary: int = 200) -> None:
    """An EAGLE-3 head with random weights for the two-layer model in `target`. `vocabulary`: it drafts these many
    tokens, every one from the fourth on."""
    import json

    import torch
    from safetensors.torch import save_file

    about = json.loads((target / "config.json").read_text())
    hidden, inner = about["hidden_size"], about["intermediate_size"]
    about |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": vocabulary}
    about |= {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "tie_word_embeddings": False}
    heads = about["num_attention_heads"] * about.get("head_dim", hidden // about["num_attention_heads"])
    shapes = {
        "fc": (hidden, 3 * hidden),
        "lm_head": (vocabulary, hidden),
        **{f"midlayer.self_attn.{part}_proj": (heads, 2 * hidden) for part in "qkv"},
        "midlayer.self_attn.o_proj": (hidden, heads),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(3)
    tensors = {f"{name}.weight": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for norm in ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm"):
        tensors[f"{norm}.weight"] = torch.ones(hidden)
    tensors["d2t"] = torch.full((vocabulary,), 3)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(about))
    save_file(tensors, folder / "model.safetensors")


def write_mtp_model(folder: Path) -> None:
    """A MiMo of two layers, which is a Qwen 2 with a head for drafts (MTP) in its file. All weights are random."""
    import json

    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, inner = 64, 128
    config = Qwen2Config(
        vocab_size=264, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=1,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    shapes: dict[str, tuple[int, ...]] = {
        "input_proj.weight": (hidden, 2 * hidden),
        **{f"self_attn.{part}_proj.weight": (hidden, hidden) for part in "qkvo"},
        **{f"self_attn.{part}_proj.bias": (hidden,) for part in "qkv"},
        **{f"mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")},
        "mlp.down_proj.weight": (hidden, inner),
    }
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm", "post_attention_layernorm")
    names = shapes | {f"{norm}.weight": (hidden,) for norm in norms}
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.mtp_layers.0.{name}": torch.empty(shape) for name, shape in names.items()}
    for name, tensor in tensors.items():
        tensor.copy_(
            torch.ones(tensor.shape) if "norm" in name else 0.3 * torch.randn(tensor.shape, generator=generator)
        )
    save_file(tensors, folder / "model.safetensors")
    about = json.loads((folder / "config.json").read_text())
    about |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(about))


def write_chain_model(folder: Path, table: Any) -> None:
    """A tiny Llama that is a scripted policy: its logits after token `i` are `table[i]`, whatever was before.
    `table`: floats of shape (V, V); the tiny model has V = 264, and a tokenizer with more tokens can be put next to
    it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tiny_model(folder, layers=1)
    size = len(table)
    config = LlamaConfig.from_pretrained(
        folder, vocab_size=size, hidden_size=size, head_dim=32, tie_word_embeddings=False
    )
    model = LlamaForCausalLM(config)
    norm = (1 / size + config.rms_norm_eps) ** -0.5  # what the last norm makes of the 1 in a token's embedding
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(torch.as_tensor(table, dtype=torch.float32).T / norm)
    model.save_pretrained(folder)
