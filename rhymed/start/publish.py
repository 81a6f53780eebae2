"""The model card of a checkpoint: what was trained, how well it did, and how to do it again. Pure.

Names of local files appear without their folders, and addresses without passwords: a card is public. The licence is
left to the reader, who knows those of the base model and of the rows.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError
from rhymed.core.run import provenance
from rhymed.core.run.checkpoint import Checkpoint
from rhymed.core.run.folder import layout_of_folder, read_evaluations, read_metrics
from rhymed.core.run.metrics import Row, totals
from rhymed.core.run.provenance import Start
from rhymed.core.secret import redacted
from rhymed.core.text import counted, toml_key, toml_value
from rhymed.inputs.hub import is_identifier
from rhymed_workers.lora.folder import WEIGHTS, read_about

PRIVATE = ("net", "metrics", "store", "trace")
"""Sections without meaning for the model."""

FOLDERS = re.compile(r"(?<![\w:/.<~])(?:file://)?(?:~[\w-]*/|/[\w.@+-]+/)(?:[\w.@+-]+/)*")
"""Of an absolute path inside a text: all but its last part."""

SIZES = (("rollout", "prompts_per_step"), ("rollout", "group_size"), ("rollout", "max_response_length"))


@dataclass(frozen=True)
class Subject:
    """What the card is about."""

    name: str  # user/name
    step: int  # trained steps of the checkpoint
    dtype: str
    adapter: bool
    base: str  # the model that was trained: an id of the hub, or the last part of a path
    config: Mapping[str, Any]  # the run's, as config.json has it
    changed: Mapping[str, Any]  # section -> key -> value, where it is not the default
    rows: Sequence[Row]  # of metrics.jsonl
    evaluations: Sequence[Row]
    start: Start | None
    version: str  # of rhymed


def card(subject: Subject) -> str:
    parts = [_front(subject), f"# {subject.name.rpartition('/')[2]}", _about(subject), *_results(subject)]
    return "\n\n".join([*parts, _use(subject), _training(subject), _again(subject)]) + "\n"


def _front(subject: Subject) -> str:
    base, algorithm = subject.base, str(subject.config["trainer"]["algorithm"])
    library = "peft" if subject.adapter else "transformers"
    lines = ["---", f"library_name: {library}", "pipeline_tag: text-generation"]
    if "/" in base:  # an id of the hub
        relation = "adapter" if subject.adapter else "finetune"
        lines += [f"base_model: {base}", f"base_model_relation: {relation}"]
    hub = [one["path"] for one in _datasets(subject.config["data"]) if one["source"] == "hub"]
    if named := [name for name in hub if not _is_local(name)]:
        lines += ["datasets:", *(f"- {name}" for name in named)]
    kind = [] if algorithm == "sft" else ["- reinforcement-learning"]
    lines += ["tags:", "- rhymed", *kind, f"- {algorithm}"]
    return "\n".join([*lines, "# license: choose one that the base model and the rows allow", "---"])


def _about(subject: Subject) -> str:
    what = "A LoRA adapter for" if subject.adapter else "Trained from"
    algorithm = subject.config["trainer"]["algorithm"]
    kind = "supervised fine-tuning" if algorithm == "sft" else f"reinforcement learning ({algorithm})"
    rows = ", ".join(_dataset(one) for one in _datasets(subject.config["data"]))
    return (
        f"{what} `{subject.base}`: {counted(subject.step, 'step')} of {kind} on"
        f" {rows}, with rhymed {subject.version}. Weights are {subject.dtype}."
    )


def _results(subject: Subject) -> Iterator[str]:
    trained = [row for row in subject.rows if int(row["step"]) < subject.step]
    found = totals(trained, 0.0)
    lines = ["## Results"]
    if not math.isnan(found["reward_gain"]) and subject.config["trainer"]["algorithm"] != "sft":
        edge = counted(found["edge"], "step")
        lines.append(
            f"Reward of training samples: {found['reward_first']:.3f} in the first {edge},"
            f" {found['reward_last']:.3f} in the last {edge} (gain {found['reward_gain']:+.3f})."
        )
    if table := list(_held_out(subject)):
        lines += ["\n".join(table), "±: one standard error, where the prompts of a dataset are a sample of many."]
    else:
        lines.append("It was not evaluated on held-out prompts.")
    yield "\n\n".join(lines)


def _held_out(subject: Subject) -> Iterator[str]:
    """Of the evaluations up to the checkpoint: the first and the last one."""
    known = [row for row in subject.evaluations if int(row["step"]) <= subject.step]
    if not known:
        return
    first, last = known[0], known[-1]
    yield f"| held out | prompts | after {int(first['step'])} steps | after {int(last['step'])} steps |"
    yield "|---|---|---|---|"
    for key in sorted(last):
        head, _, rest = key.partition("/")
        dataset, _, metric = rest.partition("/")
        if head == "val" and metric.startswith(("acc/", "reward/mean")):
            prompts = last.get(f"val/{dataset}/prompts", 0)
            share = metric.startswith("acc/")
            pair = (_value(row.get(key), row.get(f"val/{dataset}/prompts", 0), share) for row in (first, last))
            yield f"| {dataset}: {metric.removeprefix('acc/')} | {prompts:.0f} | {' | '.join(pair)} |"


def _value(value: float | None, prompts: float, share: bool) -> str:
    if value is None:
        return "-"
    error = math.sqrt(max(0.0, value * (1 - value)) / prompts) if share and prompts else None
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _use(subject: Subject) -> str:
    if subject.adapter:
        load = (
            "from peft import AutoPeftModelForCausalLM\n\n"
            f'model = AutoPeftModelForCausalLM.from_pretrained("{subject.name}")'
        )
    else:
        load = (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{subject.name}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{subject.name}")'
        )
    return f"## Use\n\n```python\n{load}\n```"


def _training(subject: Subject) -> str:
    trainer, rollout, reward = (subject.config[name] for name in ("trainer", "rollout", "reward"))
    scorers = [one["scorer"] for one in reward["scorers"]] or [reward["scorer"]]
    facts = {
        "algorithm": trainer["algorithm"],
        "learning rate": f"{trainer['lr']:g}, {trainer['schedule']}",
        "steps": subject.step,
        **{key.replace("_", " "): subject.config[section][key] for section, key in SIZES},
        "temperature": rollout["temperature"],
        "reward": ", ".join(_local(scorer) for scorer in scorers),
    }
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(["## Training", "", "| setting | value |", "|---|---|", *lines])


def _again(subject: Subject) -> str:
    lines = ["## Do it again", "", "Settings that are not rhymed's defaults:", "", "```toml"]
    for section, keys in subject.changed.items():
        if section not in PRIVATE:
            lines += _table(section, public(keys))
    lines += ["```", ""]
    if (start := subject.start) is not None:
        versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
        hashes = [f"* `{_local(name)}`: SHA-256 `{digest}`" for name, digest in start.files.items() if digest]
        lines += [f"Versions: {versions}.", *(["", "Files:", "", *hashes] if hashes else [])]
    return "\n".join(lines).rstrip()


def _table(name: str, keys: Mapping[str, Any]) -> Iterator[str]:
    """With its inner tables."""
    inner = {key: value for key, value in keys.items() if isinstance(value, dict) and value}
    lists = {key: value for key, value in keys.items() if _is_tables(value)}
    plain = {key: value for key, value in keys.items() if key not in {**inner, **lists} and value is not None}
    if plain:
        yield f"[{name}]"
        yield from (f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items())
    for key, value in inner.items():
        yield from _table(f"{name}.{toml_key(key)}", value)
    for key, rows in lists.items():
        for row in rows:
            yield f"[[{name}.{toml_key(key)}]]"
            yield from (
                f"{toml_key(inner)} = {toml_value(value)}" for inner, value in row.items() if value is not None
            )


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def public(value: Any) -> Any:
    """A part of the configuration without folders of this machine and without secrets."""
    if isinstance(value, dict):
        return {key: public(redacted(part, key)) for key, part in value.items() if key != "folder"}
    if isinstance(value, list):
        return [public(part) for part in value]
    return _local(value) if isinstance(value, str) else value


def _local(text: str) -> str:
    """An absolute path without its folder, also inside a text; all else as it is."""
    return Path(text).name if _is_local(text) else FOLDERS.sub("", text)


def _is_local(text: str) -> bool:
    """A text like `/no_think` is none."""
    return text.startswith(("/", "~")) and "/" in text[1:] and "\n" not in text


def _datasets(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return data["datasets"] or [data]


def _dataset(one: Mapping[str, Any]) -> str:
    if one["source"] == "reasoning_gym":
        return f"`{one['task']}` (reasoning_gym)"
    return f"`{_local(one['path'])}`" + (f" ({one['subset']})" if one["subset"] else "")


# From a run's folder to a repository: the export, its card, and the commit.
#
# `publish` does it all; `without_folders` cleans the export, and `push` writes to the hub.

CARD = "README.md"


def subject(run: Path, name: str, checkpoint: Checkpoint, dtype: str, *, adapter: bool) -> Subject:
    """What the run's folder records about the checkpoint. Raises `ConfigError`."""
    layout, config = layout_of_folder(run), load_run(run)
    if config.trainer.engine == "trace":
        raise ConfigError(f"{run} was trained by the trace engine: there is no model to push")
    starts = provenance.read(run)
    return Subject(
        name=name,
        step=checkpoint.step,
        dtype=dtype,
        adapter=adapter,
        base=base_name(config.model.path),
        config=config.model_dump(mode="json"),
        changed=config.model_dump(mode="json", exclude_defaults=True),
        rows=read_metrics(layout),
        evaluations=read_evaluations(layout),
        start=starts[-1] if starts else None,
        version=provenance.versions().get("rhymed", ""),
    )


def publish(about: Subject, target: Target, run: Path, export: Callable[[Path], None]) -> str:
    """Returns the address of the commit. `export` writes the model into a folder that does not exist. The copy is
    next to the checkpoints, and is removed. Raises `ConfigError`."""
    check(target)
    with tempfile.TemporaryDirectory(prefix=".push-", dir=run) as place:
        folder = Path(place) / "model"
        export(folder)
        without_folders(folder)
        (folder / CARD).write_text(card(about))
        return push(target, folder, f"{about.step} steps of {about.config['trainer']['algorithm']} with rhymed")


# Takes folders of this machine out of the files of an exported model: they name the model that was trained.

KEYS = ("base_model_name_or_path", "_name_or_path", "name_or_path")


def base_name(path: str) -> str:
    """An id of the hub as it is; of a folder or a file, the last part."""
    return path if is_identifier(path) and not Path(path).expanduser().exists() else Path(path).name


def without_folders(folder: Path) -> None:
    """Changes the files in this folder."""
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


# Writes a folder to a hub: the Hugging Face hub, or the one that HF_ENDPOINT names. Blocking.
#
# The token and the repository are checked before anything is converted: the mistakes are found in the first second.

REPLACED = ("model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors", "adapter_config.json")
"""Files of an earlier push that the new one would be loaded with: another number of shards, an adapter."""


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


def push(target: Target, folder: Path, message: str) -> str:
    """Returns the address of the commit. Raises `ConfigError` if the hub refuses."""
    from huggingface_hub import HfApi

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


@contextlib.contextmanager
def _in_words(target: Target) -> Iterator[None]:
    """Turns the library's errors into a `ConfigError` of one line."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.HFValidationError as error:
        raise ConfigError(f"{target.name}: {error}") from None
    except hub.HfHubHTTPError as error:
        status = error.response.status_code
        text = error.server_message or " ".join(str(error).split())[:200]
        if status == 401:
            raise ConfigError(f"{constants.ENDPOINT} does not know this token ({text}): `hf auth login`") from None
        if status == 403:
            raise ConfigError(
                f"the hub refuses to write {target.name}: {text}; use a token that may write for this user or"
                " organization, see `hf auth whoami`"
            ) from None
        if status == 409:
            raise ConfigError(f"{target.page} exists already: name another one, or add --update") from None
        raise ConfigError(f"{constants.ENDPOINT} answers {status}: {text}") from None
    except ValueError as error:  # of a card that the hub does not accept
        raise ConfigError(f"the hub does not accept {target.name}: {' '.join(str(error).split())}") from None
    except RuntimeError as error:  # of the upload of one file
        raise ConfigError(f"{' '.join(str(error).split())} {_unreachable(error.__cause__ or error)}") from None
    except OSError as error:
        raise ConfigError(_unreachable(error)) from None
    except Exception as error:  # of the HTTP client
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise ConfigError(_unreachable(error)) from None


def _unreachable(error: BaseException) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
