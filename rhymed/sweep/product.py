"""Which runs a sweep has: `-o key=a,b` and `-o other=c,d` are four. Pure.

A comma separates values unless it is in brackets, braces or quotes, so a list is written as TOML writes it:
`trainer.betas=[0.9,0.95],[0.9,0.99]` are two lists, and `data.system="a, b"` is one text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhymed.config.base import NAME_LENGTH
from rhymed.errors import ConfigError

OWN = ("run.name", "run.folder")  # the sweep names its runs
LONGEST = 24  # characters of a value in a run's name
OPEN, CLOSE, QUOTES = "[{", "]}", "\"'"


@dataclass(frozen=True)
class Axis:
    key: str
    values: tuple[str, ...]


def axes_of(options: Sequence[str]) -> tuple[list[Axis], list[str]]:
    """Of `key=value` options: those with several values, and the others as they are. Raises `ConfigError`."""
    axes: list[Axis] = []
    fixed: list[str] = []
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise ConfigError(f"-o {option}: write key=value, and for several runs key=value,value")
        key, values = key.strip(), split(text)
        if len(values) < 2:
            fixed.append(option)
            continue
        if "" in values:
            raise ConfigError(f"-o {option}: there is nothing between two commas, or before or behind one")
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ConfigError(f"-o {option}: {twice} is there twice; several runs of one setting differ by run.seed")
        if key in OWN:
            raise ConfigError(f"-o {option}: a sweep names its runs itself; --name names the sweep")
        axes.append(Axis(key, tuple(values)))
    keys = [axis.key for axis in axes] + [option.partition("=")[0].strip() for option in fixed]
    if twice := next((axis.key for axis in axes if keys.count(axis.key) > 1), None):
        raise ConfigError(f"-o {twice}: give its values in one option, e.g. -o {twice}=A,B")
    if not axes:
        raise ConfigError("no setting has several values: write e.g. -o trainer.lr=1e-6,1e-5")
    return axes, fixed


def split(text: str) -> list[str]:
    """The values between the commas that are neither in brackets nor in quotes. A quote within a word is a letter."""
    parts, depth, quote, fresh, skip = [""], 0, "", True, False
    for letter in text:
        if skip:
            skip = False
        elif quote:
            skip = letter == "\\" and quote == '"'
            quote = "" if letter == quote else quote
        elif letter == "," and not depth:
            parts.append("")
            fresh = True
            continue
        elif letter in QUOTES and fresh:
            quote = letter
        else:
            depth += (letter in OPEN) - (letter in CLOSE)
        fresh = letter in f",={OPEN}" or (fresh and letter == " ")
        parts[-1] += letter
    if quote or depth:
        return [text.strip()]  # not TOML: one text
    return [part.strip() for part in parts]


def combinations(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """The last axis varies fastest."""
    return [
        dict(zip((axis.key for axis in axes), values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def names(axes: Sequence[Axis]) -> dict[tuple[str, ...], str]:
    """Values of all axes -> the run's name, such as `lr-1e-6_algorithm-dapo`; shorter where that would be too long:
    `lr-1_algorithm-2` or `1_2`, with the places of the values."""
    keys = [_short(axis, axes) for axis in axes]
    written, places = [_written(axis.values) for axis in axes], [_places(axis.values) for axis in axes]
    for labels in (_labelled(keys, written), _labelled(keys, places), places):
        found = ["_".join(parts) for parts in itertools.product(*labels)]
        if max(map(len, found)) <= NAME_LENGTH:
            break
    return dict(zip(itertools.product(*(axis.values for axis in axes)), found, strict=True))


def _labelled(keys: Sequence[str], labels: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[f"{key}-{label}" for label in each] for key, each in zip(keys, labels, strict=True)]


def name_of(settings: Mapping[str, str], names: Mapping[tuple[str, ...], str]) -> str:
    return names[tuple(settings.values())]


def _short(axis: Axis, axes: Sequence[Axis]) -> str:
    """The key's last part, or all of it where two keys have the same last part."""
    last = axis.key.rpartition(".")[2]
    alike = sum(other.key.rpartition(".")[2] == last for other in axes)
    return _plain(axis.key if alike > 1 else last)


def _written(values: Sequence[str]) -> list[str]:
    """As parts of a name; by number where they are long or would be equal."""
    plain = [_plain(value) for value in values]
    if len(set(plain)) < len(plain) or any(not 0 < len(value) <= LONGEST for value in plain):
        return _places(values)
    return plain


def _places(values: Sequence[str]) -> list[str]:
    return [str(number) for number in range(1, len(values) + 1)]


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
