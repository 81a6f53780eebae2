"""Checks that a row is a JSON object with a prompt, and chooses the prompt's column. Errors name the row's place.

Rows with `prompt` pass unchanged: TRL's (text or messages, any columns) and verl's (`data_source`, `prompt`,
`reward_model`, `extra_info`). Others get `prompt` from another column and keep all columns. Pure.
"""

from __future__ import annotations

import difflib
import json
import string
from typing import Any

from rhymed.config import Dataset
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.rows import Row
from rhymed.text import short

PROMPTS = ("question", "problem", "instruction", "input", "query")
"""Columns that are used if there is no `prompt`: the first of them that holds text."""

ANSWERS = ("completion", "chosen", "rejected")
"""Columns of supervised and preference data, which GRPO does not use."""


class Columns:
    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._named = template_columns(data.template)
        # Generated rows always have their prompt; `prompt_column` may be inherited from another kind of data.
        self._chosen = "" if data.source == "reasoning_gym" else data.prompt_column

    def row(self, where: str, value: Any) -> Row:
        """The row with its prompt. Raises `DataError`."""
        if not isinstance(value, dict):
            raise DataError(f"{where}: {short(value)} is not a JSON object: write one object per line")
        _check_storable(where, value)
        row = self._with_prompt(where, value)
        for column in sorted(self._named - row.keys()):
            raise DataError(
                f"{where}: no column {column!r}{_near(column, row)} (data.template = {self._data.template!r})"
            )
        _check_prompt(where, row["prompt"])
        return row

    def question(self, row: Row) -> str:
        """Equal for rows that give the model the same prompt."""
        return json.dumps([row[column] for column in sorted(self._named | {"prompt"})], sort_keys=True)

    def _with_prompt(self, where: str, row: Row) -> Row:
        if self._chosen:
            if self._chosen not in row:
                near = _near(self._chosen, row)
                raise DataError(f"{where}: no column {self._chosen!r} (data.prompt_column){near}")
            return row if self._chosen == "prompt" else {**row, "prompt": row[self._chosen]}
        if "prompt" in row:
            return row
        for column in PROMPTS:
            if isinstance(row.get(column), str):
                return {"prompt": row[column], **row}
        if "prompt" not in self._named and self._named <= row.keys():
            return {"prompt": self._data.template.format_map(row), **row}
        raise DataError(f"{where}: no column 'prompt'{_advice(row)}")


def template_columns(template: str) -> set[str]:
    """The columns that `data.template` needs."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"data.template: {error}; write a literal brace twice") from None
    names = {name.partition(".")[0].partition("[")[0] for name in fields}
    if not names or "" in names:
        raise ConfigError(f"data.template = {template!r} must name columns, as in '{{prompt}}'")
    return names


def unused_columns(row: Row) -> str:
    """A warning about columns of another kind of training; empty if there are none."""
    unused = [column for column in ANSWERS if column in row]
    if not unused:
        return ""
    return (
        f"column{'s' * (len(unused) > 1)} {', '.join(unused)}: training uses generated answers, not these;"
        f" one can be the reference of a scorer: reward.args.column = {unused[0]!r}"
    )


def _near(column: str, row: Row) -> str:
    close = difflib.get_close_matches(column, row, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; columns: {', '.join(map(str, row)) or 'none'}"


def _advice(row: Row) -> str:
    """What to do about a row without a prompt."""
    close = difflib.get_close_matches("prompt", row, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else f", nor one of {', '.join(PROMPTS)};"
    listed = f"{guess} columns: {', '.join(map(str, row)) or 'none'}."
    if chats := [column for column, value in row.items() if _is_chat(value)]:
        name = chats[0]
        if row[name][-1]["role"] == "assistant":
            return (
                f"{listed} {name!r} ends with the assistant's answer: write the messages before it as 'prompt',"
                " and the answer as a column of its own, e.g. 'answer'"
            )
        return f"{listed} Set data.prompt_column = {name!r}"
    texts = [column for column, value in row.items() if isinstance(value, str) and value.strip()]
    best = close[0] if close else max(texts, key=lambda column: len(row[column]), default="")
    return f"{listed} Name one: data.prompt_column = {best!r}" if best else f"{listed} Add one that contains text"


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _check_prompt(where: str, prompt: Any) -> None:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise DataError(f"{where}: the prompt is empty")
        return
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{where}: prompt is {short(prompt)}; it must be a string or a list of {{role, content}}")
    for number, message in enumerate(prompt):
        has_role = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not has_role or not isinstance(message.get("content"), str):
            raise DataError(f"{where}: prompt[{number}] is {short(message)}; it must be {{role, content}}, both text")


def _check_storable(where: str, row: Row) -> None:
    """Rows are sent and stored as strict JSON; others are refused here, not in the middle of a run."""
    if not _json_problem(row):
        return
    for column, value in row.items():
        if reason := _json_problem(value):
            raise DataError(f"{where}: column {column!r} {reason}")
    raise DataError(f"{where}: the names of its columns cannot be JSON")


def _json_problem(value: Any) -> str:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "holds half a surrogate pair, which is not text"
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be JSON ({error}): drop it or store it as text"
    return ""
