"""From what a program passes to a configuration and a command: the part of `rhymed.train` before a process starts.

`start`, `resume` and `evaluate` write the run's files; `read` translates keywords into settings.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from rhymed.core import atomic
from rhymed.core.config import Config, explain
from rhymed.core.config.load import load_config
from rhymed.core.config.reward import Reward as Section
from rhymed.core.errors import ConfigError, EnvironmentFailed, RewardError, RhymedError
from rhymed.core.run.folder import no_run, numbered, write_config
from rhymed.core.run.layout import INPUTS, layout_of
from rhymed.core.text import short
from rhymed.start.api import inputs

Reward: TypeAlias = "str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | Mapping[str, Any]"
Rows: TypeAlias = Any
TASK = {"source", "path", "task", "args", "datasets"}
"""Keys of [data] that select the training rows."""
PENDING = "pending"  # in place of a path that follows from the run's folder


@dataclass
class Job:
    """A run that can be started. `made`: its folder is there for this job alone, and goes if the run is refused."""

    arguments: list[str]  # of `rhymed`
    made: Path | None = None
    renamed: str = ""  # how the run is called because its name was taken

    def discard(self) -> None:
        if self.made is not None:
            shutil.rmtree(self.made, ignore_errors=True)


@dataclass
class Asked:
    """The arguments of `rhymed.train`."""

    config: str | os.PathLike[str] | Mapping[str, Any] | Config | None
    model: Any
    dataset: Rows
    eval_dataset: Rows
    reward: Reward | None
    keywords: Mapping[str, Any]
    tools: Sequence[Callable[..., Any]] | str | None = None
    environment_factory: Callable[..., Any] | str | None = None

    def read(self, folder: Path | None, earlier: Path | None = None) -> Config:
        """The configuration. Files of objects are written into `folder`; None: nothing is written, and their paths
        are only placeholders. `earlier`: the configuration of a run to resume. Raises `RhymedError`."""
        changes = {**self._given(), **self._model(), **read(self.keywords)}
        changes |= self._dataset(folder) | self._eval_dataset(folder) | self._reward(folder)
        changes |= self._environment(folder)
        for key, written in (("reward.scorers", _with_scorers), ("reward.scorer", _scorer)):
            if key in changes:
                changes[key] = written(changes[key], folder)
        file = Path(os.fspath(self.config)) if isinstance(self.config, str | os.PathLike) else None
        config = load_config(earlier or file, (), os.environ, changes)
        if earlier:
            return config
        more = {} if TASK & config.data.model_fields_set else self._without_rows(config, folder)
        if config.environment.stateful and not {"scorer", "scorers"} & config.reward.model_fields_set:
            more["reward.scorer"] = "environment"
        return load_config(file, (), os.environ, changes | more) if more else config

    def _without_rows(self, config: Config, folder: Path | None) -> dict[str, Any]:
        """An environment may write the prompts itself, as in TRL; nothing else trains on rows that the caller did not
        name."""
        if not config.environment.stateful:
            raise ConfigError(
                "dataset: no rows are named: pass dataset=…, or name a generated task, e.g."
                " data={'task': 'simple_equations'}"
            )
        if not config.trainer.steps:
            raise ConfigError(
                "dataset: without rows the environment's reset() writes the prompts, and steps=… sets their number:"
                " pass it, or dataset=…"
            )
        count = config.trainer.steps * config.rollout.prompts_per_step
        prompt = [{"role": "user", "content": ""}]  # what reset() returns continues it
        rows = [{"prompt": prompt, "episode": number} for number in range(count)]
        return {"data.path": _training_file(rows, folder), "data.source": "jsonl"}

    def _given(self) -> dict[str, Any]:
        if isinstance(self.config, Config):
            tree: Mapping[str, Any] = self.config.model_dump(exclude_unset=True)
        elif isinstance(self.config, Mapping):
            tree = self.config
        elif self.config is None or inputs.is_place(self.config):
            return {}
        else:
            raise ConfigError(
                f"config is a {type(self.config).__name__}: pass a TOML file's name, a dict or a Config"
            )
        return read(tree)

    def _model(self) -> dict[str, Any]:
        if self.model is None:
            return {}
        if isinstance(self.model, Mapping):
            return read({"model": self.model})
        if inputs.is_place(self.model):
            return {"model.path": os.fspath(self.model)}
        raise ConfigError(
            f"model is a {type(self.model).__name__}: pass its name on a hub, or the folder that"
            " model.save_pretrained(folder) writes"
        )

    def _dataset(self, folder: Path | None) -> dict[str, Any]:
        if self.dataset is None:
            return {}
        instead: dict[str, Any] = {"data.datasets": []}  # of what the file has
        if inputs.is_place(self.dataset):
            return {**instead, "data.path": os.fspath(self.dataset)}
        return {**instead, "data.path": _training_file(self.dataset, folder), "data.source": "jsonl"}

    def _eval_dataset(self, folder: Path | None) -> dict[str, Any]:
        given = self.eval_dataset
        if given is None:
            return {}
        named = given if isinstance(given, Mapping) else {"held_out": given}
        return {"eval.datasets": [_held_out(name, rows, folder) for name, rows in named.items()]}

    def _reward(self, folder: Path | None) -> dict[str, Any]:
        if self.reward is None:
            return {}
        if isinstance(self.reward, Mapping):
            return read({"reward": self.reward})
        given: Any = self.reward
        single = isinstance(given, str) or callable(given)
        rewards: list[Any] = [given] if single else list(given)
        if hasattr(self.environment_factory, "get_reward") and "environment" not in rewards:
            rewards.append("environment")  # as in TRL, its reward is added
        if len(rewards) == 1 and single:
            return {"reward.scorers": [], "reward.args": {}, "reward.scorer": self.reward}
        unset = {f"reward.{name}": Section.model_fields[name].default for name in ("scorer", "args")}
        return {**unset, "reward.scorers": [{"scorer": one} for one in rewards]}

    def _environment(self, folder: Path | None) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.tools is not None:
            changes["environment.tools"] = _tools(self.tools, folder, "tools")
        if self.environment_factory is not None:
            changes["environment.factory"] = _tools(self.environment_factory, folder, "environment_factory")
        return changes


def start(asked: Asked) -> Job:
    """Claims a folder for the run and writes its inputs. Raises `RhymedError`."""
    wanted = asked.read(None)
    config = _claimed(wanted)
    folder = layout_of(config).folder
    job = Job(["run", str(folder / INPUTS / "config.json")], made=folder)
    try:
        config = asked.read(folder / INPUTS).model_copy(update={"run": config.run})
        _write(config, Path(job.arguments[1]))
    except BaseException:
        job.discard()
        raise
    job.renamed = config.run.name if config.run.name != wanted.run.name else ""
    return job


def resume(asked: Asked, folder: Path) -> Job:
    """Continues the run in this folder, with other settings where they may change. Raises `RhymedError`."""
    earlier = folder / "config.json"
    if not earlier.exists():
        raise ConfigError(f"resume: {no_run(folder)}")
    if asked.config is not None:
        raise ConfigError("resume: the run has its configuration; pass the settings to change without config")
    config = asked.read(folder / INPUTS, earlier)
    file = folder / INPUTS / "resumed.json"
    _write(config, file)
    return Job(["run", str(file), "--resume"])


def evaluate(folder: Path, checkpoint: str, dataset: Rows, keywords: Mapping[str, Any]) -> Job:
    """Evaluates a checkpoint of the run in this folder on its held-out rows, or on `dataset`. Raises
    `RhymedError`."""
    asked = Asked(None, None, None, dataset, None, keywords)
    config = asked.read(folder / INPUTS, folder / "config.json")
    file = folder / INPUTS / "evaluated.json"
    _write(config, file)
    return Job(["eval", str(file), *(["--checkpoint", checkpoint] if checkpoint else [])])


def _claimed(config: Config) -> Config:
    """With its own name or that and a number, whose folder did not exist, and does now."""
    for number in itertools.count(1):
        name = config.run.name if number == 1 else numbered(config.run.name, number)
        free = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        try:
            layout_of(free).folder.mkdir(parents=True)
            return free
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"run.folder: {layout_of(free).folder}: {error.strerror}") from None
    raise AssertionError("there is always a next number")


def _write(config: Config, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_config(file, config)


def _training_file(rows: Rows, folder: Path | None) -> str:
    """Of a run that is resumed, the rows have to be the same."""
    if folder is None:
        return PENDING
    file = folder / "rows.jsonl"
    if file.exists():
        inputs.check_rows(rows, file, "dataset")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        inputs.write_rows(rows, file, "dataset")
    return str(file)


def _held_out(name: str, rows: Rows, folder: Path | None) -> dict[str, Any]:
    if inputs.is_place(rows):
        return {"name": name, "path": os.fspath(rows)}
    if folder is None:
        return {"name": name, "path": PENDING, "source": "jsonl"}
    text = "".join(inputs.lines(rows, f"rows of {name}"))
    file = folder / f"{name}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(file, text)
    return {"name": name, "path": str(file), "source": "jsonl"}


def _with_scorers(scorers: Sequence[Any], folder: Path | None) -> list[Any]:
    """`reward.scorers`, each with its functions as files."""
    return [
        {**each, "scorer": _scorer(each["scorer"], folder)}
        if isinstance(each, Mapping) and "scorer" in each
        else each
        for each in scorers
    ]


def _scorer(scorer: Any, folder: Path | None) -> Any:
    return _place([scorer], folder, inputs.REWARD, RewardError) if callable(scorer) else scorer


def _tools(given: Any, folder: Path | None, what: str) -> str:
    """Of tools, or of one class of environments."""
    if isinstance(given, str):
        return given
    tools = [given] if callable(given) else list(given)
    if not tools or not all(map(callable, tools)):
        raise ConfigError(f'{what}: {short(given)}: pass functions, or their place as "file.py:name"')
    return _place(tools, folder, what, EnvironmentFailed)


def _place(functions: list[Any], folder: Path | None, what: str, error: type[RhymedError]) -> str:
    if folder is None:
        return f"{PENDING}.py:{getattr(functions[0], '__name__', what)}"
    return inputs.write_functions(functions, folder, what, error)


# Keywords of `rhymed.train` as settings: a key of the configuration each. Pure.

BARE = ("trainer", "rollout", "run")
"""Sections whose keys need no section, as in `lr=1e-5`."""

MEANT = {
    "args": "config",
    "train_dataset": "dataset",
    "reward_funcs": "reward",
    "reward_fn": "reward",
    "model_name": "model",
    "peft_config": "lora={'rank': 16}",
    "processing_class": "model: its own tokenizer is used",
    "callbacks": "nothing: see Run.metrics and docs/watching.md",
}
"""Arguments of other trainers, and ours."""


def read(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """`{"trainer": {"lr": 1e-5}}`, `{"trainer.lr": 1e-5}` and `{"lr": 1e-5}` -> `{"trainer.lr": 1e-5}`. Raises
    `ConfigError`."""
    return {key: plain(value) for name, given in keywords.items() for key, value in _keys(name, given)}


def _keys(name: str, value: Any) -> list[tuple[str, Any]]:
    sections = Config.model_fields
    if "." in name:
        return [(name, value)]
    if name in sections and isinstance(value, Mapping):
        return flat(name, value)
    homes = [f"{section}.{name}" for section in BARE if name in _fields(section)]
    if len(homes) > 1:
        written = " or ".join("{}={{{!r}: …}}".format(*home.split(".")) for home in homes)
        raise ConfigError(f"{name}: it can be {' or '.join(homes)}; write {written}")
    if homes:
        return flat(homes[0], value) if isinstance(value, Mapping) else [(homes[0], value)]
    if name in sections:
        raise ConfigError(f"{name}: a section of the configuration is a dict, e.g. trainer={{'lr': 1e-5}}")
    raise ConfigError(f"{name}: {_guess(name)}")


def flat(key: str, value: Any) -> list[tuple[str, Any]]:
    """A dict as the keys of its leaves; what is free inside (`args`, a list) stays as it is."""
    if not isinstance(value, Mapping) or key.endswith(("args", "betas")):
        return [(key, value)]
    return [pair for name, inner in value.items() for pair in flat(f"{key}.{name}", inner)]


def plain(value: Any) -> Any:
    """Paths as text, tuples as lists, and numpy's scalars as Python's, also inside."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value


def _fields(section: str) -> list[str]:
    kind: Any = Config.model_fields[section].annotation
    return list(kind.model_fields)


def _guess(name: str) -> str:
    if name in MEANT:
        return f"rhymed.train calls it {MEANT[name]}"
    if name in explain.MEANT:
        return f"no such setting; did you mean {explain.MEANT[name]}?"
    known = {key: section for section in Config.model_fields for key in _fields(section)}
    if name in known:
        return f"write {known[name]}={{{name!r}: …}}: keys of that section need its name"
    close = difflib.get_close_matches(name, [*known, *Config.model_fields], n=1)
    return "no such setting" + (f"; did you mean {close[0]}?" if close else "; docs/config.md lists them")
