"""From a TOML file, the environment and `-o key=value` to a `Config`; the later wins. Errors name place and key.

The place of a mistake is the file and line, the option or the variable that set the key. How pydantic's complaints
are put into words is in `rhymed.config.explain`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rhymed.config.config import Config
from rhymed.config.explain import field_of, tell
from rhymed.config.positions import Key, key_lines, line_of
from rhymed.errors import ConfigError

ENV_PREFIX = "RHYMED_"
"""`RHYMED_TRAINER__LR=2e-6` sets `trainer.lr`. Names without a double underscore are not ours to read."""

CONFIG_SUFFIXES = (".toml", ".json")


@dataclass
class Origin:
    """Who set which key."""

    path: Path | None
    lines: dict[Key, int] = field(default_factory=dict)
    changes: dict[Key, str] = field(default_factory=dict)  # key -> the option or variable

    def place(self, key: Key, message: str) -> str:
        """Of the key itself, else of the first key that the message names, else the file."""
        named = [(*key, *word.split(".")) for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message)]
        for change, text in self.changes.items():
            made = key and key not in self.lines and change[: len(key)] == key  # a section that only it names
            if change == key[: len(change)] or change in named or made:
                return text
        line = next((self.lines[one] for one in (key, *named) if one in self.lines), None) or line_of(key, self.lines)
        where = str(self.path) if self.path else "configuration"
        return f"{where}, line {line}" if line else where


def is_setting(variable: str) -> bool:
    """Whether an environment variable of that name sets a key."""
    return variable.startswith(ENV_PREFIX) and "__" in variable


def load_config(path: Path | None, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """Raises `ConfigError` with one line for each thing that is wrong."""
    text = _text(path) if path else ""
    tree = _parse(path, text) if path else {}
    origin = Origin(path, key_lines(text) if path and path.suffix != ".json" else {})
    for name, value in sorted(environ.items()):
        if is_setting(name):
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            _change(tree, keys, value, f"environment {name}={value}", origin)
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-o {item}: write it as key=value, e.g. -o trainer.lr=2e-6")
        _change(tree, key.strip().split("."), value.strip(), f"-o {item}", origin)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        told = [(tuple(row["loc"]), line) for row in error.errors() for line in tell(row).splitlines()]
        raise ConfigError("\n".join(f"{origin.place(key, line)}: {line}" for key, line in told)) from None


def load_run(folder: Path) -> Config:
    """Of the run in this folder, as it was written: the environment changes nothing in it. Raises `ConfigError`."""
    return load_config(folder / "config.json", (), {})


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except IsADirectoryError:
        resume = f"; to go on with that run: rhymed run --resume {path}" if (path / "config.json").exists() else ""
        raise ConfigError(f"{path}: Is a directory; name a TOML file{resume}") from None
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: {error.strerror} (seen from {Path.cwd()}){_neighbours(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason}, byte {error.start}); give a TOML file") from None


def _neighbours(path: Path) -> str:
    """What is there instead."""
    folders = {path.parent, Path("configs")}
    there = [str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.toml")]
    close = difflib.get_close_matches(str(path), there, n=1) or [one for one in there if Path(one).stem == path.stem]
    return f"; did you mean {close[0]}?" if close else ""


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        if path.suffix == ".json":
            return _object(json.loads(text))
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(path, text, str(error))) from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a run's configuration: {error}") from None


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"it has no sections, but {json.dumps(found)[:60]}")
    return found


def _syntax(path: Path, text: str, message: str) -> str:
    """TOML's error with the line it is about, and what is often meant."""
    if path.suffix not in CONFIG_SUFFIXES:
        return f"{path}: not TOML ({message}); a configuration is a TOML file, see configs/quickstart.toml"
    found = re.search(r" \(at line (\d+), column (\d+)\)", message)
    if not found:
        return f"{path}: not TOML: {message}"
    number, what = int(found[1]), message[: found.start()]
    lines = text.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"{path}, line {number}: not TOML: {what}{_meant(what, line)} (the line: {line[:80]})"


def _meant(what: str, line: str) -> str:
    value = line.partition("=")[2].strip()
    if what == "Invalid value" and value in ("True", "False", "None"):
        return f": write {value.lower()}" if value != "None" else ": leave the key out instead"
    if what == "Invalid value" and value[:1].isalpha():
        return f': text needs quotes, "{value}"'
    if what in ("Cannot overwrite a value", "Cannot declare", "Cannot mutate immutable namespace"):
        return ": the key or section is there twice"
    return ""


def _change(tree: dict[str, Any], keys: list[str], text: str, place: str, origin: Origin) -> None:
    path = tuple(int(key) if key.isdigit() else key for key in keys)
    node: Any = tree
    for key in path[:-1]:
        node = _below(node, key, place)
    try:
        node[path[-1]] = _value(text, path)
    except (IndexError, TypeError):
        raise ConfigError(f"{place}: there is no entry {path[-1]} to change") from None
    origin.changes[path] = place


def _below(node: Any, key: str | int, place: str) -> Any:
    try:
        found = node[key] if isinstance(key, int) else node.setdefault(key, {})
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{place}: there is no entry {key} to change") from None
    if not isinstance(found, dict | list):
        raise ConfigError(f"{place}: {key} is not a section")
    return found


def _value(text: str, key: Key) -> Any:
    """TOML's reading of the text. What TOML does not know, or is to be text, is a plain string."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
    wanted = field_of(key)
    return text if wanted is not None and wanted.annotation is str and not isinstance(value, str) else value
