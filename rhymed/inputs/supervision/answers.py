"""From a row's right answer to the response that a policy should have written: its text and the end of the turn.

The tokens are those of the answer alone, as they follow a rendered prompt, so the policy learns them where it will
generate. The end of the turn is the token that the chat template writes after an answer, if engines stop at it;
otherwise the model's end of sequence. Blocking once: reads a tokenizer from disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.models import resolve_model, stop_tokens
from rhymed.inputs.render import load_tokenizer
from rhymed.inputs.rows import Row
from rhymed.inputs.supervision.column import column_text

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
        stops = stop_tokens(folder)
        if not stops:
            raise ConfigError(
                f"{folder} names no end-of-sequence token (eos_token_id in generation_config.json or config.json):"
                " an answer could not end"
            )
        tokenizer = load_tokenizer(config.model, folder)
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
            text = str(tokenizer.apply_chat_template(chat, tokenize=False))
        except Exception:  # a template may raise anything; it is reported when rows are rendered
            return stops[0]
        after = tokenizer(text.rpartition(PROBE)[2], add_special_tokens=False, verbose=False).input_ids
        return next((token for token in after if token in stops), stops[0])
    return stops[0]
