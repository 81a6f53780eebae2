"""A migration as text: TOML with a comment per value and, at its end, what has no counterpart. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rhymed.config import Config
from rhymed.migrate.entries import UNSET, VERDICTS
from rhymed.migrate.migration import Migration
from rhymed.text import toml_key, toml_value

WIDTH = 110


def document(migration: Migration, source: str) -> str:
    head = f"# Translated by `rhymed migrate-config` from {source} ({migration.framework} {migration.version})."
    lines = [head, "# Keys that are missing have rhymed's defaults: docs/config.md."]
    for section in Config.model_fields:
        lines += _section(section, {key: put for key, put in migration.puts.items() if key.startswith(f"{section}.")})
    return "\n".join([*lines, *_without(migration)]) + "\n"


def _section(section: str, puts: dict[str, tuple[Any, str]]) -> Iterator[str]:
    tables: dict[str, list[tuple[str, Any, str]]] = {}
    lists = {}
    for key, (value, comment) in puts.items():
        table, _, name = key.rpartition(".")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lists[key] = value, comment
        else:
            tables.setdefault(table, []).append((name, value, comment))
    if section in tables or (puts and not lists and not tables):
        yield from _table(section, tables.pop(section, []))
    for name, entries in tables.items():
        yield from _table(name, entries)
    for key, (rows, comment) in lists.items():
        for number, row in enumerate(rows):
            yield from ("", f"[[{key}]]" + (f" # {comment}" if comment and not number else ""))
            yield from (f"{toml_key(name)} = {toml_value(value)}" for name, value in row.items())


def _table(name: str, entries: list[tuple[str, Any, str]]) -> Iterator[str]:
    yield from ("", f"[{name}]")
    for key, value, comment in sorted(entries, key=lambda entry: _place(name, entry[0])):
        line = f"# {key} =" if value is UNSET else f"{key} = {toml_value(value)}"
        if comment and len(line) + len(comment) + 3 > WIDTH:
            yield from textwrap.wrap(comment, WIDTH, initial_indent="# ", subsequent_indent="# ")
            yield line
        else:
            yield f"{line} # {comment}" if comment else line


def _place(table: str, key: str) -> int:
    """In the order of docs/config.md."""
    section = Config.model_fields.get(table)
    fields = list(getattr(section.annotation, "model_fields", ())) if section else []
    return fields.index(key) if key in fields else len(fields)


def _without(migration: Migration) -> Iterator[str]:
    for verdict, title in VERDICTS.items():
        notes = [note for note in migration.notes if note.verdict == verdict]
        if notes:
            yield from ("", f"# {title}")
        for note in notes:
            text = f"{note.name}: {note.reason}"
            yield from textwrap.wrap(
                text,
                WIDTH,
                initial_indent="# * ",
                subsequent_indent="#   ",
                break_on_hyphens=False,
                break_long_words=False,
            )
