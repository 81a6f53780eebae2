"""How counts, sizes and foreign texts are written on a terminal. Pure."""

from __future__ import annotations

from rhymed.marks import step_name
from rhymed.messages import EVAL


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def whose(step: int) -> str:
    """What a sample with this step in its id belongs to; people count steps from 1, ids from 0."""
    if step >= EVAL:
        return f"the evaluation of version {step - EVAL}"
    return step_name(step) if step >= 0 else "an earlier run"


def number(value: float | None, form: str) -> str:
    """`form` as for `format`; a dash where there is nothing to tell."""
    return "-" if value is None else format(value, form)


def size(count: float) -> str:
    """Of so many bytes."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def visible(text: str) -> str:
    """Without what would steer the terminal: a response may hold any character."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "\ufffd" for c in text)
