"""Where a key stands in a TOML file, for error messages. Reads lines, not values: `tomllib` has done that before.

A key inside an inline table or a list that spans lines counts as standing where that began.
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
    """Key path -> its line, from 1; entries of `[[a.b]]` are `("a", "b", 0)` and so on. The first line counts."""
    found: dict[Key, int] = {}
    entries: dict[Key, int] = {}
    table: Key = ()
    open_text = ""  # the quotes that end the text we are in the middle of
    for number, line in enumerate(text.splitlines(), 1):
        if open_text:
            open_text = "" if open_text in line else open_text
            continue
        if header := HEADER.match(line):
            table = _split(header[2])
            if header[1]:
                found.setdefault(table, number)
                entries[table] = entries.get(table, -1) + 1
                table = (*table, entries[table])
            elif table[:-1] in entries:  # [a.b.c] below [[a.b]]
                table = (*table[:-1], entries[table[:-1]], table[-1])
            found.setdefault(table, number)
        elif assignment := ASSIGNMENT.match(line):
            key = _split(assignment[1])
            for end in range(1, len(key) + 1):
                found.setdefault((*table, *key[:end]), number)
        quotes = QUOTES.findall(line)
        open_text = quotes[-1] if len(quotes) % 2 else ""
    return found


def line_of(key: Key, lines: Mapping[Key, int]) -> int | None:
    """Of the key, else of the closest that contains it."""
    for end in range(len(key), 0, -1):
        if key[:end] in lines:
            return lines[key[:end]]
    return None


def _split(dotted: str) -> Key:
    return tuple(match[1] or match[2] or match[3] for match in PART.finditer(dotted))
