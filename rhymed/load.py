"""From a TOML file, the environment and `-o key=value` to a `Config`; the later wins. Errors name key and place."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rhymed.config import Config
from rhymed.errors import ConfigError

ENV_PREFIX = "RHYMED_"
"""`RHYMED_TRAINER__LR=2e-6` sets `trainer.lr`. Names without a double underscore are not ours to read."""


def load_config(path: Path | None, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """Raises `ConfigError` with one line for each thing that is wrong."""
    tree = _read(path) if path else {}
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            _put(tree, name.removeprefix(ENV_PREFIX).lower().split("__"), text, f"environment {name}")
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-o {item}: write it as key=value, e.g. -o trainer.lr=2e-6")
        _put(tree, key.strip().split("."), text.strip(), f"-o {item}")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        place = str(path) if path else "configuration"
        raise ConfigError("\n".join(f"{place}: {_tell(row)}" for row in error.errors())) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        return dict(json.loads(text)) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:  # of TOML, JSON, UTF-8; or JSON that is no object
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _put(tree: dict[str, Any], keys: list[str], text: str, place: str) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{place}: {key} is not a section")
    tree[keys[-1]] = _value(text)


def _value(text: str) -> Any:
    """TOML's reading of the text; what TOML does not know is a plain string."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _tell(row: Any) -> str:
    key = ".".join(str(part) for part in row["loc"])
    if row["type"] == "extra_forbidden":
        known = _known(row["loc"][:-1])
        close = difflib.get_close_matches(str(row["loc"][-1]), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"
        return f"unknown key {key}{hint}"
    message = str(row["msg"]).removeprefix("Value error, ")
    return f"{key}: {message} (given: {row['input']!r})" if key else message


def _known(loc: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in loc:
        model = model.model_fields[str(part)].annotation  # type: ignore[assignment]
    return sorted(model.model_fields)
