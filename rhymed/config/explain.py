"""What is wrong with a configuration, in words: pydantic's complaint about one key becomes a line for its author."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rhymed.config.config import Config
from rhymed.text import short

CUTOFF = 0.5  # similarity from which a name is suggested: fp32 is meant for float32

WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text in quotes",
    "dict": "a table, { key = value }",
    "list": "a list, [ ... ]",
    "tuple": "a list, [ ... ]",
}
"""What a type is called in TOML, by the first word of pydantic's error types."""


def tell(row: Any) -> str:
    """One of `ValidationError.errors()` as one line (a line each, where a validator found several contradictions)."""
    loc, kind, given = tuple(row["loc"]), str(row["type"]), row["input"]
    key, first = ".".join(map(str, loc)), kind.partition("_")[0]
    if kind == "extra_forbidden":
        return _unknown(loc)
    if kind == "missing":
        return f"{key} is missing"
    if kind == "literal_error":
        return f"{key} = {_short(given)}: {_choices(given, _literals(loc))}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key} = {_short(given)}: {key} is a section: write [{key}] and its keys on the lines below"
    if kind == "value_error":
        message = str(row["msg"]).removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    if kind == "string_pattern_mismatch":
        return f"{key} = {_short(given)}: it may have letters, digits, '.', '_' and '-' only, a letter or digit first"
    if kind.endswith(("_type", "_parsing", "_from_float")) and first in WANTED:
        return f"{key} = {_short(given)}: {_type(first, given)}"
    message = re.sub(r"^Input should be", "it must be", str(row["msg"]))
    return f"{key} = {_short(given)}: {message[:1].lower()}{message[1:]}"


def field_of(loc: Sequence[str | int]) -> FieldInfo | None:
    """The field of `Config` at this key path, if there is one."""
    model: Any = Config
    found: FieldInfo | None = None
    for part in loc:
        if isinstance(part, int):
            continue  # an entry of the list that the part before named
        found = model.model_fields.get(part) if model is not None else None
        if found is None:
            return None
        model = _model(found.annotation)
    return found


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that the annotation is, or is a list of."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _unknown(loc: tuple[Any, ...]) -> str:
    parent, name = field_of(loc[:-1]), str(loc[-1])
    model = (_model(parent.annotation) if parent else Config) or Config
    section = ".".join(map(str, loc[:-1]))
    known = sorted(model.model_fields)
    what = f"unknown key {'.'.join(map(str, loc))}" if section else f"unknown section {name}"
    if close := difflib.get_close_matches(name, known, n=1):
        return f"{what}; did you mean {close[0]}?"
    sections = {home: getattr(field.annotation, "model_fields", {}) for home, field in Config.model_fields.items()}
    homes = [home for home, fields in sections.items() if name in fields]
    if homes:
        return f"{what}; it belongs to {' or '.join(f'[{home}]' for home in homes)}"
    return f"{what}; known here: {', '.join(known)}"


def _literals(loc: tuple[Any, ...]) -> list[str]:
    field = field_of(loc)
    return [str(value) for value in get_args(field.annotation)] if field else []


def _choices(given: Any, allowed: list[str]) -> str:
    close = difflib.get_close_matches(str(given).lower(), allowed, n=1, cutoff=CUTOFF)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"it must be {' or '.join(map(repr, allowed))}{guess}"


def _type(wanted: str, given: Any) -> str:
    if isinstance(given, str) and wanted in ("int", "float", "bool"):
        if _is_number(given) if wanted != "bool" else given.lower() in ("true", "false"):
            return f"it is text: write it without quotes, {given.strip().lower()}"
        return f"{WANTED[wanted]} is needed"
    if isinstance(given, bool) and wanted != "bool":
        return f"it is {str(given).lower()}, and {WANTED[wanted]} is needed"
    if wanted == "string" and isinstance(given, int | float):
        return f'it must be text: write it in quotes, "{given}"'
    return f"{WANTED[wanted]} is needed"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _short(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else short(value, 60)
