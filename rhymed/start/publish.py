"""A checkpoint in a repository of a hub: the export without folders of this machine, and a short model card.

The token and the repository are checked before anything is converted: mistakes are found in the first second. Of the
rows the card names those that are public. The licence is left to the reader, who knows those of the base model and of
the rows. Blocking.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rhymed.core.config import Config, Dataset
from rhymed.core.errors import ConfigError
from rhymed.core.run import provenance
from rhymed.core.text import counted
from rhymed.inputs.hub import is_identifier
from rhymed_workers.lora.folder import WEIGHTS, read_about

CARD = "README.md"
REPLACED = ("model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors", "adapter_config.json")
"""Files of an earlier push that the new one would be loaded with: another number of shards, an adapter."""
KEYS = ("base_model_name_or_path", "_name_or_path", "name_or_path")
"""Of an exported model's files: they name the model that was trained."""


def card(config: Config, name: str, step: int, dtype: str, *, adapter: bool) -> str:
    """`name`: of the repository; `step`: trained steps. Raises `ConfigError` if there is no model."""
    if config.trainer.engine == "trace":
        raise ConfigError(f"{config.run.name} was trained by the trace engine: there is no model to push")
    algorithm, base, data = config.trainer.algorithm, base_name(config.model.path), config.data
    is_sft = algorithm == "sft"
    sources: list[Dataset] = [*data.datasets] or [data]
    hub = [one.path for one in sources if one.source == "hub" and base_name(one.path) == one.path]
    tasks = [f"{one.task} (reasoning_gym)" for one in sources if one.source == "reasoning_gym"]
    library, model = ("peft", "AutoPeftModelForCausalLM") if adapter else ("transformers", "AutoModelForCausalLM")
    head = [f"library_name: {library}", "pipeline_tag: text-generation"]
    if "/" in base:  # an id of the hub
        head += [f"base_model: {base}", f"base_model_relation: {'adapter' if adapter else 'finetune'}"]
    head += ["datasets:", *(f"- {one}" for one in hub)] if hub else []
    head += ["tags:", "- rhymed", *([] if is_sft else ["- reinforcement-learning"]), f"- {algorithm}"]
    head += ["# license: choose one that the base model and the rows allow"]
    how = "supervised fine-tuning" if is_sft else f"reinforcement learning ({algorithm})"
    about = (
        f"{'A LoRA adapter for' if adapter else 'Trained from'} {base}: {counted(step, 'step')} of {how}"
        f"{' on ' if hub or tasks else ''}{', '.join([*hub, *tasks])}, with rhymed"
        f" {provenance.versions().get('rhymed', '')}. Weights are {dtype}."
    )
    use = f'from {library} import {model}\n\nmodel = {model}.from_pretrained("{name}")'
    lines = ["---", *head, "---", "", f"# {name.rpartition('/')[2]}", "", about, "", "```python", use, "```"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Target:
    """A repository of models."""

    name: str  # user/name
    revision: str = ""  # branch; empty: main
    private: bool = False
    update: bool = False  # it may exist already

    @property
    def page(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.name}" + (f"/tree/{self.revision}" if self.revision else "")


def publish(target: Target, run: Path, text: str, message: str, export: Callable[[Path], None]) -> str:
    """Returns the address of the commit. `text`: of the card. `export` writes the model into a folder that does not
    exist. The copy is next to the checkpoints, and is removed. Raises `ConfigError`."""
    from huggingface_hub import HfApi

    check(target)
    with tempfile.TemporaryDirectory(prefix=".push-", dir=run) as place:
        folder = Path(place) / "model"
        export(folder)
        without_folders(folder)
        (folder / CARD).write_text(text)
        with _in_words(target):
            api = HfApi()
            api.create_repo(target.name, private=target.private or None, exist_ok=target.update)
            if target.revision:
                api.create_branch(target.name, branch=target.revision, exist_ok=True)
            commit: Any = api.upload_folder(
                repo_id=target.name,
                folder_path=folder,
                revision=target.revision or None,
                commit_message=message,
                delete_patterns=list(REPLACED) if target.update else None,
            )
    return str(commit.commit_url)


def check_name(name: str) -> None:
    """Raises `ConfigError`."""
    if "/" not in name or not is_identifier(name):
        raise ConfigError(f"{name}: name a repository as USER/NAME")


def check(target: Target) -> None:
    """Raises `ConfigError` if the repository cannot be written."""
    from huggingface_hub import HfApi, constants, get_token

    check_name(target.name)
    if constants.is_offline_mode():
        raise ConfigError("HF_HUB_OFFLINE is set, and a hub cannot be written without a network")
    if get_token() is None:
        raise ConfigError("there is no token for the hub: `hf auth login`, or set HF_TOKEN to one that may write")
    with _in_words(target):
        api = HfApi()
        api.whoami()
        exists = api.repo_exists(target.name)
        public = exists and target.private and not api.repo_info(target.name).private
    if exists and not target.update:
        raise ConfigError(f"{target.page} exists already: name another one, or add --update to write into it")
    if public:
        raise ConfigError(
            f"{target.page} is public, and --private does not change that: change it there, or leave it out"
        )


@contextlib.contextmanager
def _in_words(target: Target) -> Iterator[None]:
    """Turns the library's errors into a `ConfigError` of one line."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.HfHubHTTPError as error:
        status, text = error.response.status_code, error.server_message or _line(error)
        sentences = {
            401: f"{constants.ENDPOINT} does not know this token ({text}): `hf auth login`",
            403: f"the hub refuses to write {target.name}: {text}; use a token that may write for this user or"
            " organization, see `hf auth whoami`",
            409: f"{target.page} exists already: name another one, or add --update",
        }
        raise ConfigError(sentences.get(status, f"{constants.ENDPOINT} answers {status}: {text}")) from None
    except ValueError as error:  # of a name or a card
        raise ConfigError(f"the hub does not accept {target.name}: {_line(error)}") from None
    except Exception as error:
        if not isinstance(error, OSError | RuntimeError) and not type(error).__module__.startswith("http"):
            raise
        cause = error.__cause__ or error  # a RuntimeError names the file
        raise ConfigError(
            f"{constants.ENDPOINT} cannot be reached: {_line(error)} ({type(cause).__name__}: {_line(cause)})"
        ) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def base_name(path: str) -> str:
    """An id of the hub as it is; of a folder or a file, the last part."""
    return path if is_identifier(path) and not Path(path).expanduser().exists() else Path(path).name


def without_folders(folder: Path) -> None:
    """Takes folders of this machine out of the files of an exported model."""
    for file in folder.glob("*config.json"):
        settings = json.loads(file.read_text())
        found = {key: base_name(settings[key]) for key in KEYS if isinstance(settings.get(key), str)}
        if settings != settings | found:
            file.write_text(json.dumps(settings | found, indent=2) + "\n")
    if (folder / WEIGHTS).is_file():
        _restate(folder / WEIGHTS)


def _restate(file: Path) -> None:
    """The adapter's description of itself is in the header of its file."""
    about = read_about(file)
    if about is None or about.base == base_name(about.base):
        return
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header["__metadata__"] |= replace(about, base=base_name(about.base)).metadata()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
