"""The end of a turn: the ids that the model's folder names, those of the settings, and the chat template's own end.

Three sources define it, and no library compares them: a model whose template ends turns with <|im_end|> and whose
folder names <|endoftext|> alone writes to the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core.config import Config
from rhymed.inputs.chats import ChatTemplate
from rhymed.inputs.models import stop_tokens


class Stops(NamedTuple):
    ids: list[int]
    added: int | None = None  # of these: the template's end of a turn, which nothing else names
    unsafe: int | None = None  # the token after the last turn, which nothing names; another one ends earlier turns


def stops_of(config: Config, folder: Path, tokenizer: Any) -> Stops:
    """The template's end of a turn becomes a stop token if it is one special token, the same after every turn."""
    ids = list(dict.fromkeys([*stop_tokens(folder), *config.rollout.stop_token_ids]))
    if not tokenizer.chat_template:
        return Stops(ids)
    template = ChatTemplate(tokenizer, config.model.chat_template_kwargs)
    if template.end is not None and template.end not in ids:
        return Stops([*ids, template.end], added=template.end)
    last = template.last_end
    return Stops(ids, unsafe=last if last is not None and last not in ids else None)


class Cutter:
    """Ends one response at a stop string: after the first token with which its text has one. Not thread-safe.

    A pure function of the tokens, however they are split into pieces: only the last tokens are read as text, enough
    for the longest string, as every token is at least a byte."""

    def __init__(self, tokenizer: Any, strings: list[str]) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        self._window = max((len(string.encode()) for string in strings), default=0) + MARGIN
        self._checked = 0  # tokens that were read
        self._end: int | None = None

    def cut(self, tokens: Sequence[int]) -> int | None:
        """`tokens`: of the response so far. Number of tokens up to the stop string; None: they contain none."""
        if self._end is None and self._strings and len(tokens) > self._checked:
            if self._has(tokens, self._checked, len(tokens)):
                ends = range(self._checked + 1, len(tokens) + 1)
                self._end = next((end for end in ends if self._has(tokens, end, end)), None)
            self._checked = len(tokens)
        return self._end

    def _has(self, tokens: Sequence[int], since: int, end: int) -> bool:
        read = tokens[max(0, since - self._window) : end]
        text = self._tokenizer.decode(read, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(string in text for string in self._strings)


MARGIN = 4  # tokens of a character that begins before the window
