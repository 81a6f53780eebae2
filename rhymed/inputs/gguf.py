"""Converts a GGUF file to a Hugging Face model folder, with bfloat16 weights and the file's tokenizer.

Needs torch. Knows neither the cache nor names of models.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from rhymed.errors import ConfigError

log = logging.getLogger(__name__)

MAGIC = b"GGUF"


def convert(file: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and generation config into the folder. Takes seconds to minutes."""
    with file.open("rb") as opened:
        if opened.read(4) != MAGIC:
            raise ConfigError(f"{file} is not a GGUF file: it does not start with {MAGIC.decode()!r}")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
        from transformers.utils import logging as output
    except ImportError as error:
        raise ConfigError(f"a GGUF file needs torch and more ({error}): pip install 'rhymed[trainer]'") from None
    if not sys.stderr.isatty():
        output.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        ).to(torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # transformers' readers raise anything
        raise ConfigError(f"{file} cannot be converted: {type(error).__name__}: {error}") from error
    _set_pre_tokenizer(file, tokenizer)
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"{file} has no end-of-sequence token: name the folder of the original model")
    special = {
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    }
    for key, value in special.items():
        setattr(model.config, key, value)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(**special, do_sample=True, temperature=1.0, top_p=1.0, top_k=0)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _set_pre_tokenizer(file: Path, tokenizer: Any) -> None:
    """A GGUF file only names its pre-tokenizer, and transformers' reader does not know every name."""
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(file))
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name == "smollm":  # single digits, then byte-level BPE
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in {"default", "gpt-2", *GGUF_PRE_TOKENIZER_SPLITS}:
        log.warning(
            "%s: its pre-tokenizer %r is unknown: tokens may differ from those of the original model;"
            " prefer the original model's folder",
            file, name,
        )  # fmt: skip
