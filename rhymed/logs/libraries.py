"""Which entries are remarks of libraries (vLLM, torch, …), of which a healthy run has dozens. Pure.

Only known libraries count: what a reward function logs, under whatever name, is the user's own.
"""

from __future__ import annotations

import re

LIBRARIES = frozenset({
    "PIL", "accelerate", "aiohttp", "asyncio", "bitsandbytes", "compressed_tensors", "datasets", "deepspeed",
    "fastapi", "filelock", "flashinfer", "fsspec", "httpcore", "httpx", "huggingface_hub", "jax", "kernels",
    "matplotlib", "mlflow", "numexpr", "openai", "opentelemetry", "peft", "py.warnings", "ray", "safetensors",
    "sentence_transformers", "tensorboard", "tensorflow", "tokenizers", "torch", "torchao", "torchvision",
    "trackio", "transformers", "triton", "urllib3", "uvicorn", "vllm", "wandb", "xformers",
})  # fmt: skip
"""Names of loggers, or of the part before their first dot."""

PRINTED = (
    (re.compile(r"\S*/(?:site|dist)-packages/(\w+)\S*:\d+: \w*Warning: "), ""),  # the library is in the path
    (re.compile(r"(?:\(\S+ pid=\d+\) )?(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \["), "vllm"),
    (re.compile(r"\[[WI]\d{4} \d\d:\d\d:\d\d\.\d+ \S+:\d+\] "), "torch"),
    (re.compile(r"\[Gloo\] "), "torch"),
    (re.compile(r"Triton "), "triton"),
)
"""Beginnings of lines that libraries print instead of logging them, but for errors -> library."""


def library_of(logger: str) -> str:
    """Empty: none that is known."""
    first = logger.partition(".")[0]
    return logger if logger in LIBRARIES else first if first in LIBRARIES else ""


def printed_by(line: str) -> str:
    """The library that printed the line; empty: unknown."""
    found = ((start.match(line), name) for start, name in PRINTED)
    return next((name or match[1] for match, name in found if match), "")
