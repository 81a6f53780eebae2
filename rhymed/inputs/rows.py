"""Rows of a dataset and the identity of a prompt. Needs neither torch nor a tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Row = dict[str, Any]
"""Columns of one dataset row. `prompt` is a string or a list of {role, content}; others are for scorers."""


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
    """Of any shape: a row of another release is shown, too."""
    if not isinstance(message, dict):
        return str(message)
    role, content = message.get("role"), message.get("content")
    return f"{role}: {'' if content is None else content}"
