"""From what a program passes to a configuration and a command: the part of `rhymed.train` before a process starts."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rhymed import atomic
from rhymed.api import inputs, settings
from rhymed.config import Config
from rhymed.config.load import load_config
from rhymed.config.reward import Reward as Section
from rhymed.errors import ConfigError
from rhymed.run.folder import no_run, numbered
from rhymed.run.layout import layout_of
from rhymed.run.redact import write_config
from rhymed.text import short

Reward: TypeAlias = "str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | Mapping[str, Any]"
Rows: TypeAlias = Any
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
        changes = {**self._given(), **self._model(), **settings.read(self.keywords)}
        changes |= self._dataset(folder) | self._eval_dataset(folder) | self._reward(folder)
        changes |= self._environment(folder)
        for key, written in (("reward.scorers", _with_scorers), ("reward.scorer", _scorer)):
            if key in changes:
                changes[key] = written(changes[key], folder)
        file = Path(os.fspath(self.config)) if isinstance(self.config, str | os.PathLike) else None
        return load_config(earlier or file, (), os.environ, changes)

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
        return settings.read(tree)

    def _model(self) -> dict[str, Any]:
        if self.model is None:
            return {}
        if isinstance(self.model, Mapping):
            return settings.read({"model": self.model})
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
            return settings.read({"reward": self.reward})
        if isinstance(self.reward, str) or callable(self.reward):
            return {"reward.scorers": [], "reward.args": {}, "reward.scorer": self.reward}
        unset = {f"reward.{name}": Section.model_fields[name].default for name in ("scorer", "args")}
        return {**unset, "reward.scorers": [{"scorer": one} for one in self.reward]}

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
    job = Job(["run", str(folder / inputs.FOLDER / "config.json")], made=folder)
    try:
        config = asked.read(folder / inputs.FOLDER).model_copy(update={"run": config.run})
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
    config = asked.read(folder / inputs.FOLDER, earlier)
    file = folder / inputs.FOLDER / "resumed.json"
    _write(config, file)
    return Job(["run", str(file), "--resume"])


def evaluate(folder: Path, checkpoint: str, dataset: Rows, keywords: Mapping[str, Any]) -> Job:
    """Evaluates a checkpoint of the run in this folder on its held-out rows, or on `dataset`. Raises
    `RhymedError`."""
    asked = Asked(None, None, None, dataset, None, keywords)
    config = asked.read(folder / inputs.FOLDER, folder / "config.json")
    file = folder / inputs.FOLDER / "evaluated.json"
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
    if not callable(scorer):
        return scorer
    name = getattr(scorer, "__name__", "reward")
    return inputs.write_scorer(scorer, folder) if folder is not None else f"{PENDING}.py:{name}"


def _tools(given: Any, folder: Path | None, what: str) -> str:
    """Of tools, or of one class of environments."""
    if isinstance(given, str):
        return given
    tools = [given] if callable(given) else list(given)
    if not tools or not all(map(callable, tools)):
        raise ConfigError(f'{what}: {short(given)}: pass functions, or their place as "file.py:name"')
    return f"{PENDING}.py:{what}" if folder is None else inputs.write_tools(tools, folder, what)
