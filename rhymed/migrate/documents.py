"""YAML of `trl grpo --config`, and verl's hydra YAML with its interpolations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rhymed.errors import ConfigError
from rhymed.migrate.entries import Unknown
from rhymed.migrate.values import flat, typed

REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
SELECTED = re.compile(r"\$\{oc\.(?:select|env):\s*([\w.]+)\s*(?:,\s*([^${}]*))?\}")

VERL_SECTIONS = {"actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward", "reward_model"}


def parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading YAML needs PyYAML: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The document as it is. Raises `ConfigError`."""
    try:
        tree = parse_yaml(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} has no settings: a map of names to values is needed")
    return tree


def is_verl(tree: Mapping[str, Any]) -> bool:
    return bool(VERL_SECTIONS & tree.keys()) and any(isinstance(tree.get(name), Mapping) for name in VERL_SECTIONS)


def verl_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names; interpolations that lead nowhere are left to defaults, or are `Unknown`."""
    values = flat(tree)
    found: dict[str, Any] = {}
    for name, value in values.items():
        resolved = _resolved(value, values)
        if resolved is not _ABSENT:
            found[name] = typed(resolved)
    return found


_ABSENT = object()


def _resolved(value: Any, values: Mapping[str, Any], depth: int = 0) -> Any:
    if not isinstance(value, str) or "${" not in value:
        return value
    if match := SELECTED.fullmatch(value):
        if match[1] in values and depth < 10:
            return _resolved(values[match[1]], values, depth + 1)
        return _ABSENT if match[2] is None else match[2].strip("'\" ")
    if (match := REFERENCE.fullmatch(value)) and match[1] in values and depth < 10:
        return _resolved(values[match[1]], values, depth + 1)
    text = REFERENCE.sub(lambda match: str(values.get(match[1], match[0])), value)
    return text if "${" not in text else Unknown(value)
