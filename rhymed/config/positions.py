"""The line of each key in a TOML file, for error messages. Parses no values: `tomllib` has accepted the text before.

A key inside an inline table or a list over several lines has the line on which that starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Key = tuple[str | int, ...]

HEADER = re.compile(r"\s*\[(\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
ASSIGNMENT = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
QUOTES = re.compile(r'"""|' + "'''")


def key_lines(text: str) -> dict[Key, int]:
    """Key path -> its first line, from 1; entries of `[[a.b]]` are `("a", "b", 0)` and so on."""
    lines: dict[Key, int] = {}
    entries: dict[Key, int] = {}
    table: Key = ()
    open_text = ""  # the quotes that will end a multi-line string
    for number, line in enumerate(text.splitlines(), 1):
        if open_text:
            open_text = "" if open_text in line else open_text
            continue
        if header := HEADER.match(line):
            table = _split(header[2])
            if header[1]:
                lines.setdefault(table, number)
                entries[table] = entries.get(table, -1) + 1
                table = (*table, entries[table])
            elif table[:-1] in entries:  # [a.b.c] below [[a.b]]
                table = (*table[:-1], entries[table[:-1]], table[-1])
            lines.setdefault(table, number)
        elif assignment := ASSIGNMENT.match(line):
            key = _split(assignment[1])
            for end in range(1, len(key) + 1):
                lines.setdefault((*table, *key[:end]), number)
        quotes = QUOTES.findall(line)
        open_text = quotes[-1] if len(quotes) % 2 else ""
    return lines


def line_of(key: Key, lines: Mapping[Key, int]) -> int | None:
    """The line of the key, else of the innermost table that contains it."""
    for end in range(len(key), 0, -1):
        if key[:end] in lines:
            return lines[key[:end]]
    return None


def _split(dotted: str) -> Key:
    return tuple(match[1] or match[2] or match[3] for match in PART.finditer(dotted))
