"""Reads a TOML file, the environment, `-o key=value` and settings of a program into a `Config`; the later wins.

Errors name the key, and the file, the option, the variable or the setting that set it. `rhymed.core.config.explain`
words the errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rhymed.core.config.config import Config
from rhymed.core.config.explain import explain, field_of
from rhymed.core.errors import ConfigError
from rhymed.core.text import quoted, short, truncated

ENV_PREFIX = "RHYMED_"
"""`RHYMED_TRAINER__LR=2e-6` sets `trainer.lr`. Names without a double underscore are no settings."""

QUOTED = 120  # characters of an option in an error

CONFIG_SUFFIXES = (".toml", ".json")

RUN_CONFIG = "config.json"
OF_A_RUN = ("id.json", "lock", "store")
"""Files next to the configuration in a run's folder, and in a backup."""


Key = tuple[str | int, ...]


@dataclass
class Origin:
    """What set each key."""

    path: Path | None
    changes: dict[Key, str] = field(default_factory=dict)  # key, or a section that it made -> the option or variable

    def place(self, key: Key, message: str) -> str:
        """What set the first key named in the message, else the key itself; else the file."""
        named = [(*key, *word.split(".")) for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message)]
        parts = [key[:end] for end in range(len(key), 0, -1)]
        found = next((self.changes[name] for name in (*named, *parts) if name in self.changes), "")
        return found or (str(self.path) if self.path else "configuration")


def is_setting(variable: str) -> bool:
    """Whether an environment variable with this name sets a key."""
    return variable.startswith(ENV_PREFIX) and "__" in variable


def load_config(
    path: Path | None,
    overrides: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """`settings`: key -> value, e.g. {"trainer.lr": 2e-6}. Raises `ConfigError` with one line per error."""
    tree = _at_its_place(path, _parse(path, _text(path))) if path else {}
    origin = Origin(path)
    for name, value in sorted(environ.items()):
        if is_setting(name):
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            _change(tree, keys, value, f"environment {truncated(f'{name}={value}', QUOTED)}", origin)
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-o {truncated(item, QUOTED)}: write it as key=value, e.g. -o trainer.lr=2e-6")
        _change(tree, key.strip().split("."), value.strip(), f"-o {truncated(item, QUOTED)}", origin)
    for key, given in (settings or {}).items():
        _set(tree, key.split("."), given, f"{key} = {short(given)}", origin)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [(tuple(row["loc"]), line) for row in error.errors() for line in explain(row).splitlines()]
        raise ConfigError("\n".join(_placed(origin.place(key, line), line) for key, line in lines)) from None


def _placed(place: str, line: str) -> str:
    """A keyword of Python is its own place: the line names it already."""
    key, equals, _ = place.partition(" = ")
    return line if equals and line.startswith((f"{key} = ", f"{key}: ")) else f"{place}: {line}"


def is_of_run(path: Path) -> bool:
    """A file that a run has written into its folder, and not one of a user's that has the same name."""
    return path.name == RUN_CONFIG and any((path.parent / name).exists() for name in OF_A_RUN)


def _at_its_place(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """A run's own file contains the path that the run had when it was written. If the folder has been copied or
    renamed since, the run is the one in the folder that was named."""
    folder = path.parent
    run = tree.get("run", {})
    if not is_of_run(path) or not isinstance(run, dict):
        return tree
    recorded = Path(str(run.get("folder", "")), str(run.get("name", "")))
    with contextlib.suppress(OSError):
        if recorded.samefile(folder):  # perhaps by a link: its processes use this name
            return tree
    here = folder.resolve()
    return {**tree, "run": {**run, "folder": str(here.parent), "name": here.name}}


def load_run(folder: Path) -> Config:
    """The configuration of the run in this folder; the environment does not change it. Raises `ConfigError`."""
    return load_config(folder / RUN_CONFIG, (), {})


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except IsADirectoryError:
        resume = (
            f"; to continue that run: rhymed run --resume {quoted(path)}" if (path / "config.json").exists() else ""
        )
        raise ConfigError(f"{path}: Is a directory; give a TOML file{resume}") from None
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: {error.strerror} (relative to {Path.cwd()})") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason}, byte {error.start}); give a TOML file") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        if path.suffix == ".json":
            return _object(json.loads(text))
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(path, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a run's configuration: {error}") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object of sections is needed, not {json.dumps(value)[:60]}")
    return value


def _syntax(path: Path, text: str, message: str) -> str:
    """TOML's error with its line."""
    if path.suffix not in CONFIG_SUFFIXES:
        return f"{path}: not TOML ({message}); a configuration is a TOML file, see configs/quickstart.toml"
    place = re.search(r" \(at line (\d+), column (\d+)\)", message)
    if not place:
        return f"{path}: not TOML: {message}"
    number, lines = int(place[1]), text.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    cure = "text needs quotes, booleans are true and false, a key and a section are written once"
    return f"{path}, line {number}: not TOML: {message[: place.start()]} (the line: {line[:80]}): {cure}"


def _change(tree: dict[str, Any], keys: list[str], text: str, place: str, origin: Origin) -> None:
    _set(tree, keys, _value(text, _path(keys)), place, origin)


def _set(tree: dict[str, Any], keys: list[str], value: Any, place: str, origin: Origin) -> None:
    path = _path(keys)
    node: Any = tree
    for depth, key in enumerate(path[:-1], 1):
        node = _below(node, key, place)
        if not node:
            origin.changes.setdefault(path[:depth], place)
    try:
        node[path[-1]] = value
    except (IndexError, TypeError):
        raise ConfigError(f"{place}: there is no entry {path[-1]} to change") from None
    origin.changes[path] = place


def _path(keys: list[str]) -> Key:
    return tuple(int(key) if key.isdigit() else key for key in keys)


def _below(node: Any, key: str | int, place: str) -> Any:
    try:
        if isinstance(key, str) and node.get(key) is None:  # also null, as a run writes a section that is left out
            node[key] = {}
        child = node[key]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{place}: there is no entry {key} to change") from None
    if not isinstance(child, dict | list):
        raise ConfigError(f"{place}: {key} is not a section")
    return child


def _value(text: str, key: Key) -> Any:
    """The text parsed as a TOML value; as it is if that fails or if the setting is text."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # ValueError: of TOML's syntax, or a number of thousands of digits
        return text
    field = field_of(key)
    return text if field is not None and field.annotation is str and not isinstance(value, str) else value
