"""Checks that a row is a JSON object with a prompt, and chooses the prompt's column. Errors name the row's place.

Rows with `prompt` pass unchanged: TRL's (text or messages, any columns) and verl's (`data_source`, `prompt`,
`reward_model`, `extra_info`). Others get `prompt` from another column and keep all columns. Pure.
"""

from __future__ import annotations

import difflib
import json
import string
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from rhymed.core.config import Dataset
from rhymed.core.errors import ConfigError, DataError
from rhymed.core.text import counted, short
from rhymed.inputs.rows import Row, without_nulls

PROMPTS = ("question", "problem", "instruction", "input", "query")
"""Columns that are used if there is no `prompt`: the first of them that holds text."""

MESSAGES = "messages"
"""Column with a whole conversation, as most tables of chats have it: the prompt is the part before the answer."""

ANSWERS = ("completion", "chosen", "rejected")
"""Columns of supervised and preference data, which training on generated answers does not use."""


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
                f"{where}: no column {column!r}{near(column, row)} (data.template = {self._data.template!r})"
            )
        if isinstance(row["prompt"], list):
            row = {**row, "prompt": [_message(message) for message in row["prompt"]]}
        _check_prompt(where, row["prompt"])
        return row

    def _with_prompt(self, where: str, row: Row) -> Row:
        if self._chosen:
            if self._chosen not in row:
                raise DataError(f"{where}: no column {self._chosen!r} (data.prompt_column){near(self._chosen, row)}")
            return row if self._chosen == "prompt" else {**row, "prompt": row[self._chosen]}
        if "prompt" in row:
            return row
        for column in PROMPTS:
            if isinstance(row.get(column), str):
                return {"prompt": row[column], **row}
        if (chat := _before_answer(row.get(MESSAGES))) and not self._named - {"prompt"}:
            return {"prompt": chat, **row}
        if "prompt" not in self._named and self._named <= row.keys():
            return {"prompt": self._data.template.format_map(filled(row)), **row}
        raise DataError(
            f"{where}: no column 'prompt', nor one of {', '.join(PROMPTS)}{near('prompt', row)}: name the one with"
            " the text, or the messages before the answer, in data.prompt_column"
        )


def filled(row: Row) -> Row:
    """The row for `data.template`: null values become empty."""
    return {name: "" if value is None else value for name, value in row.items()}


def _message(message: Any) -> Any:
    """The message as templates read it: without null keys, its text in one piece."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    elif isinstance(content, list) and content and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    given = {} if content is None else {"content": content}
    return without_nulls({**message, **given})


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _before_answer(chat: Any) -> list[Any]:
    """The messages that come before the last one, if that is the assistant's answer; all of them otherwise."""
    if not _is_chat(chat):
        return []
    answered = chat[-1]["role"] == "assistant" and not chat[-1].get("tool_calls")
    return list(chat[:-1] if answered else chat)


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


def ignored(data: Dataset, rows: Sequence[Row], used: Collection[str]) -> Iterator[str]:
    """What training will not read of these rows, one sentence each. `used`: columns that are read as answers."""
    columns = [column for column in ANSWERS if column not in used and any(column in row for row in rows)]
    if columns:
        yield (
            f"column{'s' * (len(columns) > 1)} {', '.join(columns)}: training uses generated answers, not these; one"
            f" can be the reference of a scorer (reward.args.column = {columns[0]!r}), or, with"
            " rollout.engine = 'dataset', the answer that is trained on"
        )
    if data.system and (own := sum(has_system(row.get("prompt")) for row in rows)):
        yield (
            f"{own} of {counted(len(rows), 'row')} {'begins' if own == 1 else 'begin'} with a system message, which"
            " is kept: data.system is left out there"
        )


def has_system(prompt: Any) -> bool:
    """Whether the row's chat begins with a system message, so that `data.system` is not put before it."""
    return _is_chat(prompt) and bool(prompt[0]["role"] == "system")


def near(column: str, row: Row) -> str:
    """What a column that the row lacks may mean, for the end of an error."""
    close = difflib.get_close_matches(column, row, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; columns: {', '.join(map(str, row)) or 'none'}"


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
