"""What a judge is asked about a response: the body of a request, from the rubric and the row. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from rhymed.config.parts.judge import Judge, rubric_problem
from rhymed.errors import RewardError, RowUnsuitable
from rhymed.inputs.render import Chat
from rhymed.inputs.rows import Row
from rhymed_workers.scorers.answer import reference

NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A placeholder. Other braces, such as those of JSON in a rubric, stay as they are."""
THOUGHT_ENDS = "</think>"

PATHS = {"chat": "chat/completions", "classify": "classify", "pooling": "pooling", "score": "score"}


def address_of(judge: Judge) -> str:
    """vLLM serves the paths of reward models beside /v1."""
    base = judge.url.rstrip("/")
    return f"{base if judge.api == 'chat' else base.removesuffix('/v1')}/{PATHS[judge.api]}"


def body_of(judge: Judge, rubric: str, chat: Chat, response: str, row: Row) -> bytes:
    """The request's JSON, always the same for the same arguments. Raises `RowUnsuitable`."""
    shown = response if judge.thinking else response.rpartition(THOUGHT_ENDS)[2].strip()
    if judge.api == "chat":
        system = [{"role": "system", "content": judge.system}] if judge.system else []
        asked: dict[str, Any] = {
            "messages": [*system, {"role": "user", "content": filled(rubric, as_text(chat), shown, row)}]
        }
    elif judge.api == "score":
        asked = {"text_1": as_text(chat), "text_2": shown}
    else:
        asked = {"messages": [*chat, {"role": "assistant", "content": shown}]}
    options = judge.options if judge.api == "chat" else _without_sampling(judge)
    return json.dumps({"model": judge.model, **asked, **options}, sort_keys=True).encode()


def filled(rubric: str, prompt: str, response: str, row: Row) -> str:
    """Placeholders in what is filled in stay as they are."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "prompt":
            return prompt
        if name == "response":
            return response
        return as_words(reference(row) if name == "ground_truth" and name not in row else _column(row, name))

    return NAME.sub(value, rubric)


def as_text(chat: Chat) -> str:
    """One message is its text; several are introduced by their roles."""
    if len(chat) == 1:
        return chat[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in chat)


def as_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def read_rubric(judge: Judge, key: str) -> str:
    """Blocking: may read a file. Raises `RewardError`; `key`: where the judge is configured."""
    if not judge.rubric_file:
        return judge.rubric
    try:
        with open(judge.rubric_file, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise RewardError(f"{key}.rubric_file = {judge.rubric_file!r}: {error}") from None
    if not text.strip():
        raise RewardError(f"{key}.rubric_file = {judge.rubric_file!r} is empty")
    if problem := rubric_problem(text):
        raise RewardError(f"{key}.rubric_file = {judge.rubric_file!r}: {problem}")
    return text


def _column(row: Row, name: str) -> Any:
    if name not in row:
        raise RowUnsuitable(f"the judge's rubric names {{{name}}}, the row has the columns {', '.join(sorted(row))}")
    return row[name]


def _without_sampling(judge: Judge) -> dict[str, Any]:
    """The default of `options` is for judges that write."""
    return {} if judge.options == Judge.model_fields["options"].default else judge.options
