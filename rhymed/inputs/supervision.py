"""What a row has to teach: the response that the policy should have written, and a demonstration for its teacher.

A response is the row's right answer and the end of the turn. Its tokens are those of the answer alone, as they follow
a rendered prompt, so the policy learns them where it will generate. The end of the turn is the token that the chat
template writes after an answer, if engines stop at it; otherwise the model's end of sequence. Blocking once: reads a
tokenizer from disk.

`Answers` makes these tokens, and `TeacherRenderer` the prompt of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed.core.config import Config, Data, Teacher
from rhymed.core.errors import ConfigError, DataError
from rhymed.core.text import short
from rhymed.inputs.chats import Chat
from rhymed.inputs.columns import near
from rhymed.inputs.models import resolve_model
from rhymed.inputs.render import Renderer, load_tokenizer, messages
from rhymed.inputs.rows import Row
from rhymed.inputs.stops import stops_of
from rhymed.inputs.tokenizer import render

COLUMNS = ("answer", "completion")
"""Columns that are used if `data.answer_column` is empty: the first that the row has."""

PROBE = "An answer."


class Answers:
    """`limit`: tokens of the longest answer with its end. Not thread-safe."""

    def __init__(self, column: str, limit: int, tokenizer: Any, stops: list[int]) -> None:
        self._column, self._limit, self._tokenizer = column, limit, tokenizer
        self._end = _end_of_turn(tokenizer, stops)

    @classmethod
    def load(cls, config: Config) -> Answers:
        """Raises `ConfigError`."""
        folder = resolve_model(config)
        tokenizer = load_tokenizer(config.model, folder)
        stops = stops_of(config, folder, tokenizer).ids
        if not stops:
            raise ConfigError(
                f"{folder} names no end-of-sequence token (eos_token_id in generation_config.json or config.json):"
                " an answer could not end"
            )
        return cls(config.data.answer_column, config.rollout.max_response_length, tokenizer, stops)

    def __call__(self, where: str, row: Row) -> list[int]:
        """Token ids. Raises `DataError` for a row without an answer, or with one that is too long."""
        column = self._column or next((name for name in COLUMNS if name in row), COLUMNS[0])
        text = column_text(where, row, column, "data.answer_column")
        tokens = [*self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids, self._end]
        if len(tokens) > self._limit:
            raise DataError(
                f"{where}: the answer has {len(tokens)} tokens, rollout.max_response_length is {self._limit}: raise"
                " it, or leave the row out"
            )
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        """With special tokens."""
        return str(self._tokenizer.decode(tokens))


def _end_of_turn(tokenizer: Any, stops: list[int]) -> int:
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": PROBE}]
        try:
            text = render(tokenizer, chat)
        except Exception:  # a template may raise anything; it is reported when rows are rendered
            return stops[0]
        after = tokenizer(text.rpartition(PROBE)[2], add_special_tokens=False, verbose=False).input_ids
        return next((token for token in after if token in stops), stops[0])
    return stops[0]


# Text of a column: right answers and demonstrations are text, numbers, or messages of the assistant. Pure.


def column_text(where: str, row: Row, column: str, key: str) -> str:
    """The column as text. `key` names the setting for errors. Raises `DataError`."""
    if column not in row:
        raise DataError(f"{where}: no column {column!r} ({key}){near(column, row)}")
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


# The teacher's prompt of a row: the policy's, with a demonstration in its user message or another system message.
#
# The row's chat is made as for the policy (`rhymed.inputs.render.messages`), changed, and rendered by the same
# template and tokenizer. Pure, but for `load_teacher_renderer`.

KEY = "trainer.teacher.demonstration"
UNLIMITED = 1 << 30
"""Tokens. `rollout.max_prompt_length` is the policy's limit; the teacher's is the model's context."""


class TeacherRenderer:
    """(name of the row for errors, row) -> the teacher's prompt tokens. Raises `DataError`."""

    def __init__(self, data: Data, teacher: Teacher, render: Renderer) -> None:
        self._data, self._teacher, self._render = data, teacher, render

    def __call__(self, where: str, row: Row) -> list[int]:
        return self._render(where, {**row, "prompt": self.chat(where, row)})

    def shown(self, where: str, row: Row) -> str:
        """The teacher's input as text, with special tokens."""
        return self._render.shown(where, {**row, "prompt": self.chat(where, row)})

    def chat(self, where: str, row: Row) -> Chat:
        chat, teacher = messages(self._data, where, row), self._teacher
        if teacher.system:
            others = [message for message in chat if message["role"] != "system"]
            chat = [{"role": "system", "content": teacher.system}, *others]
        if teacher.demonstration:
            asked = [message for message in chat if message["role"] == "user"]
            if not asked:
                raise DataError(f"{where}: the prompt has no user message to put {KEY} into")
            asked[-1]["content"] = self._shown(where, row, asked[-1]["content"])
        return chat

    def _shown(self, where: str, row: Row, prompt: str) -> str:
        shown = column_text(where, row, self._teacher.demonstration, KEY)
        try:
            return self._teacher.template.format_map({**row, "prompt": prompt, "demonstration": shown})
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"trainer.teacher.template: {error!r}; it may name {{prompt}}, {{demonstration}} and columns of the"
                " row, and a literal brace is written twice"
            ) from None


def load_teacher_renderer(config: Config) -> TeacherRenderer:
    """Blocking: reads a tokenizer from disk."""
    plain = Data(prompt_column="prompt")  # the chat is complete: neither template nor system message is added
    tokenizer = load_tokenizer(config.model, resolve_model(config))
    render = Renderer(plain, UNLIMITED, tokenizer, config.model.chat_template_kwargs)
    return TeacherRenderer(config.data, config.trainer.teacher, render)
