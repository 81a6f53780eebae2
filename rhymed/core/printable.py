"""The gate for text that others wrote: peers, models, rewards, datasets. Pure.

A terminal obeys control characters, a line break forges a line of a log, and marks of direction (U+202A to U+202E,
U+2066 to U+2069) show another text than the one that is stored. `str.isprintable` is False for all of these, for
characters without width, and for half surrogate pairs. Text that must stay exact (a response, a row) is stored as it
is and passes `visible` or `line` where it is shown; all other text passes `line` where a message is made or decoded.
"""

from __future__ import annotations

from unicodedata import category

LONGEST = 500
"""Characters of a line, unless its field says otherwise."""

REPLACED = "\ufffd"


def line(text: str, longest: int = LONGEST) -> str:
    """One line of at most `longest` characters; what is not printable is written as an escape, e.g. `\\x1b`."""
    if len(text) <= longest and text.isprintable():
        return text
    shown = "".join(map(_escaped, text[: longest + 1]))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def visible(text: str) -> str:
    """Several lines: `line`'s gate for texts that keep their line breaks and their length."""
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) or c == "\n" else " " if c == "\t" else REPLACED for c in text)


def indented(text: str) -> str:
    """`visible`, with every line but the first one indented: none can pass for a line of somebody else."""
    return visible(text).replace("\n", "\n    ")


def json_visible(text: str, encoding: str = "utf-8") -> str:
    """JSON with escapes for all that is not printable, or not in this encoding: the same value for programs, and safe
    on a terminal."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = "".join(c if c.isascii() else _json_escape(c) for c in text)
    return text


def _is_shown(c: str) -> bool:
    """Spaces of other widths, too: `str.isprintable` knows only one, and Japanese and French texts have others."""
    return c.isprintable() or category(c) == "Zs"


def _escaped(c: str) -> str:
    return c if _is_shown(c) else " " if c == "\t" else ascii(c)[1:-1]


def _json_escape(c: str) -> str:
    units = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
