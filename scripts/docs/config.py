"""Writes docs/config.md from the fields of rhymed.core.config: `make docs`."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rhymed.core.config import Config, HeldOut, Scorer, Section, Share

HEAD = """# Settings

Every key of the TOML file, generated from `rhymed/core/config/` (`make docs`). Each key can also be set with
`-o section.key=value` or `RHYMED_SECTION__KEY=value`; the later of file, environment and `-o` wins. Unknown keys are
refused. Relative paths are resolved against the current working directory.
"""

LISTS: dict[str, tuple[str, type[Section]]] = {
    "data": ("[[data.datasets]]", Share),
    "reward": ("[[reward.scorers]]", Scorer),
    "eval": ("[[eval.datasets]]", HeldOut),
}
"""Sections with a list of tables: its header and its entries' class."""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        parts += _tables(name, section)
        if name in LISTS:
            title, listed = LISTS[name]
            parts.append("\n".join(_table(title, listed)))
    return "\n".join(parts)


def _tables(name: str, section: type[Section]) -> Iterator[str]:
    """The section's table, and one for each section in it."""
    yield "\n".join(_table(f"[{name}]", section))
    for key, field in section.model_fields.items():
        if inner := _section(field):
            yield from _tables(f"{name}.{key}", inner)


def _section(field: FieldInfo) -> type[Section] | None:
    """What the key is a table of; None for a list of tables, too."""
    optional = typing.get_origin(field.annotation) is UnionType
    kinds = typing.get_args(field.annotation) if optional else (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _table(title: str, section: type[Section]) -> Iterator[str]:
    own = (section.__doc__ or "").strip() if section.__doc__ != Section.__doc__ else ""
    yield f"## `{title}`\n"
    if own:
        yield " ".join(own.split()) + "\n"
    yield "| key | default | value | meaning |"
    yield "|---|---|---|---|"
    for key, field in section.model_fields.items():
        if _section(field):
            continue
        value = " ".join(part for part in (_kind(field.annotation), _bounds(field)) if part)
        yield f"| `{key}` | {_default(field)} | {value} | {field.description or ''} |"
    yield ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", [], {}):
        return ""
    return f"`{json.dumps(value)}`"


def _kind(annotation: Any) -> str:
    """The choices of a Literal, else the name of the type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in args)
    if origin is UnionType and NoneType in args:
        return _kind(next(kind for kind in args if kind is not NoneType))
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(annotation, {list: "list", dict: "table", tuple: "list"}.get(origin or annotation, ""))


def _bounds(field: FieldInfo) -> str:
    signs = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
    bounds = [
        f"{sign} {getattr(rule, name):g}" for rule in field.metadata for name, sign in signs if hasattr(rule, name)
    ]
    return " and ".join(bounds)


if __name__ == "__main__":
    print(page(), end="")
