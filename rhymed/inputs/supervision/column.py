"""Text of a column: right answers and demonstrations are text, numbers, or messages of the assistant. Pure."""

from __future__ import annotations

import difflib
from typing import Any

from rhymed.errors import DataError
from rhymed.inputs.rows import Row
from rhymed.text import short


def column_text(where: str, row: Row, column: str, key: str) -> str:
    """The column as text. `key` names the setting for errors. Raises `DataError`."""
    if column not in row:
        close = difflib.get_close_matches(column, row, n=1)
        near = f"; did you mean {close[0]!r}?" if close else f"; columns: {', '.join(row)}"
        raise DataError(f"{where}: no column {column!r} ({key}){near}")
    text = _text(row[column])
    if text is None or not text.strip():
        raise DataError(
            f"{where}: column {column!r} ({key}) is {short(row[column])}: text, a number, or messages that end with"
            " the assistant's are needed"
        )
    return text


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[-1], dict) and value[-1].get("role") == "assistant":
        content = value[-1].get("content")
        return content if isinstance(content, str) else None
    return None
