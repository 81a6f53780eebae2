"""Rows of a dataset and the identity of a prompt. Needs neither torch nor a tokenizer."""

from __future__ import annotations

import hashlib
import json
import math
from decimal import Decimal
from typing import Any

Row = dict[str, Any]
"""Columns of one dataset row. `prompt` is a string or a list of {role, content}; others are for scorers."""


def as_json(value: Any) -> Any:
    """Values that tables have and JSON does not, as JSON: dates as text, decimals as text, NaN as null; also
    inside."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Decimal):
        return str(value)
    for method in ("isoformat", "tolist"):  # of dates, and of numpy's scalars and arrays
        if hasattr(value, method):
            return as_json(getattr(value, method)())
    return value


def without_nulls(value: Any) -> Any:
    """The value without inner keys that are null: a table gives every object the keys of all others."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def prompt_id(row: Row) -> str:
    """16 hex digits of the row's content: equal rows are the same prompt in every run, so history can be reused."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def prompt_text(row: str | None) -> str:
    """The prompt of a row as the store has it, as one text for people; a chat's messages one per line."""
    if row is None:
        return "(its row is not in the store)"
    prompt = json.loads(row).get("prompt", row)
    if isinstance(prompt, list):
        return "\n".join(map(_message, prompt))
    return str(prompt)


def _message(message: Any) -> str:
    """Of any shape: imported rows are shown, too."""
    if not isinstance(message, dict):
        return str(message)
    role, content = message.get("role"), message.get("content")
    return f"{role}: {'' if content is None else content}"
