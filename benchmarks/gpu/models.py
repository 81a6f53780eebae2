"""Models of the parts of `python -m benchmarks gpu`, without a network: shapes with random weights, and the bench
policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.policy import model as policy_model
from benchmarks.policy import training
from rhymed.core.config import Config, Data, Model
from rhymed.start.bench.spec import OUT, BenchWorkload, workload_of

SHAPES: dict[str, dict[str, Any]] = {  # the class of a configuration in transformers, and its arguments
    "tiny": {
        "kind": "Llama",
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "135m": {  # SmolLM2
        "kind": "Llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "1.5b": {  # Qwen2.5
        "kind": "Qwen2",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "7b": {  # Qwen2.5
        "kind": "Qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
TOKENIZER = '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'


def config_of(shape: str, **changes: Any) -> Any:
    """A configuration of transformers. `changes`: arguments that replace the shape's."""
    import transformers

    arguments = {
        "max_position_embeddings": 1 << 17,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **SHAPES[shape],
        **changes,
    }
    kind = arguments.pop("kind")
    made = getattr(transformers, f"{kind}Config")(**arguments)
    made.architectures = [f"{kind}ForCausalLM"]
    return made


def network(shape: str, device: str, **changes: Any) -> Any:
    """A model with random weights in float32, made on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config_of(shape, **changes)).float()


def only_shape(folder: Path, shape: str, dtype: str) -> Path:
    """A folder with the configuration alone, for an engine that makes random weights."""
    made = config_of(shape)
    made.dtype = dtype
    made.save_pretrained(folder / shape)
    return folder / shape


def random_weights(folder: Path, shape: str, dtype: str, device: str) -> Path:
    """A Hugging Face folder with a tokenizer of one word."""
    import torch

    network(shape, device).to(getattr(torch, dtype)).save_pretrained(folder / shape)
    (folder / shape / "tokenizer.json").write_text(TOKENIZER)
    return folder / shape


def policy(folder: Path, *, small: bool) -> tuple[Path, str]:
    """(a folder with a model and `train.jsonl`, its description): the bench policy if it was built, else, or if
    `small`, a model that gives every token nearly the same probability, so that nothing can be drafted."""
    if (OUT / "train.jsonl").is_file() and not small:
        return OUT, "bench policy"
    import torch

    recipe = policy_model.QUICK if small else training.Recipe()
    tokenizer = training.build_tokenizer(recipe.seed)
    made = training.build_network(recipe, tokenizer)
    with torch.no_grad():
        made.model.norm.weight.fill_(0.1)  # an untrained model of this recipe would repeat its last token
    policy_model.write(folder / "policy", made, tokenizer, recipe.seed)
    return folder / "policy", "random weights of a small shape" if small else "random weights of the policy's shape"


def workload(folder: Path, name: str, longest: int) -> BenchWorkload:
    """The prompts of a folder from `policy`."""
    config = Config(model=Model(path=str(folder)), data=Data(path=str(folder / "train.jsonl")))
    return workload_of(name, config, longest)
