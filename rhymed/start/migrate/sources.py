"""Settings as people write them for other frameworks: in a shell script or on a command line, and in YAML.

`a.b=1` of hydra, `--name 1` of TRL; nothing is executed. Variables are replaced where the script itself assigns them;
others, and results of commands, are `Unknown`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rhymed.core.config.base import flat
from rhymed.core.errors import ConfigError
from rhymed.start.migrate.entries import Unknown, arithmetic, typed

HYDRA = re.compile(r"\+{0,2}([A-Za-z_][\w]*(?:\.[\w]+)+)=(.*)", re.S)
OPTION = re.compile(r"--([A-Za-z_][\w-]*)(?:=(.*))?", re.S)
ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|\$([A-Za-z_]\w*)")
END = re.compile(r"&&?|\|\|?|;|\d*[<>].*|&>.*|\$\{?[@*]\}?")
"""A word after the values of an option: of the shell, or all arguments of the script."""
SUM = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")


def words(text: str) -> list[str]:
    """Of a script, with variables replaced; `;` after each line."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    known: dict[str, str] = {}
    found: list[str] = []
    for line in lines:
        line = SUM.sub(lambda match: _total(match, known), line)
        if match := ASSIGNED.match(line):
            values = _split(match[2])
            if len(values) <= 1:
                value = replaced(values[0] if values else "", known)
                if not line[:1].isspace() or match[1] not in known:  # indented: a branch, which may not be taken
                    known[match[1]] = value
                continue
        found += (*(replaced(word, known) for word in _split(line)), ";")
    return found


def _split(line: str) -> list[str]:
    """A line's words without quotes and comments. A quote that does not end is text."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return line.split()


def replaced(word: str, known: dict[str, str]) -> str:
    """With the values of variables; `$HOME` is `~`."""
    known = {"HOME": "~", **known}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return known.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(5):  # a default may have variables in it
        new = VARIABLE.sub(value, word)
        if new == word:
            break
        word = new
    return word


def _total(match: re.Match[str], known: dict[str, str]) -> str:
    total = arithmetic(_plain(replaced(match[1], known), known))
    return match[0] if total is None else str(total)


def _plain(sum_text: str, known: dict[str, str]) -> str:
    """In `$((...))` variables need no dollar."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: known.get(match[0], match[0]), sum_text)


def hydra(found: Iterable[str]) -> dict[str, Any]:
    matches = (HYDRA.fullmatch(word) for word in found)
    return {match[1]: _value(match[2]) for match in matches if match}


def options(found: list[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, `--flag`, `--name one two`."""
    given: dict[str, Any] = {}
    for number, word in enumerate(found):
        if not (match := OPTION.fullmatch(word)):
            continue
        name, values = match[1].replace("-", "_"), [match[2]] if match[2] is not None else []
        for later in () if values else found[number + 1 :]:
            if OPTION.fullmatch(later) or END.fullmatch(later):
                break
            values.append(later)
        read = [_value(value) for value in values]
        given[name] = True if not read else read[0] if len(read) == 1 else read
    return given


def _value(text: str) -> Any:
    if "$" in text or "`" in text:
        return Unknown(text)
    if text.startswith(("[", "{")):
        return _list(text)
    lowered = text.strip("'\"").lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    return None if lowered in ("null", "none", "") else typed(text.strip("'\""))


def _list(text: str) -> Any:
    return typed(parse_yaml(text))


# YAML of `trl grpo --config`, and verl's hydra YAML with its interpolations.

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
