"""The teacher's prompt of a row: the policy's, with a demonstration in its user message or another system message.

The row's chat is made as for the policy (`rhymed.inputs.render.messages`), changed, and rendered by the same template
and tokenizer. Pure, but for `load_teacher_renderer`.
"""

from __future__ import annotations

from rhymed.config import Config, Data, Teacher
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.models import resolve_model
from rhymed.inputs.render import Chat, Renderer, load_tokenizer, messages
from rhymed.inputs.rows import Row
from rhymed.inputs.supervision.column import column_text

KEY = "trainer.teacher.demonstration"
UNLIMITED = 1 << 30
"""Tokens. `rollout.max_prompt_length` is the policy's limit; the teacher's is the model's context."""


class TeacherRenderer:
    """(name of the row for errors, row) -> the teacher's prompt tokens. Raises `DataError`."""

    def __init__(self, data: Data, teacher: Teacher, render: Renderer) -> None:
        self._data, self._teacher, self._render = data, teacher, render

    def __call__(self, where: str, row: Row) -> list[int]:
        return self._render(where, {**row, "prompt": self.chat(where, row)})

    def text(self, where: str, row: Row) -> str:
        """The teacher's input as text, with special tokens."""
        return self._render.text(where, {**row, "prompt": self.chat(where, row)})

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
    return TeacherRenderer(config.data, config.trainer.teacher, Renderer(plain, UNLIMITED, tokenizer))
