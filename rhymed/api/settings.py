"""Keywords of `rhymed.train` as settings: a key of the configuration each. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError

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
    known = {key: section for section in Config.model_fields for key in _fields(section)}
    if name in known:
        return f"write {known[name]}={{{name!r}: …}}: keys of that section need its name"
    close = difflib.get_close_matches(name, [*known, *Config.model_fields], n=1)
    return "no such setting" + (f"; did you mean {close[0]}?" if close else "; docs/config.md lists them")
