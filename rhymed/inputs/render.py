"""From a dataset row to prompt tokens: template, system message, chat template, tokenizer.

A `Renderer` is pure once built. Errors name the row as the caller does: `prompt 0123456789abcdef` where only the id
is known, `train.jsonl, line 7` at the door. Knows nothing of engines, nor where rows come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rhymed.config import Config, Data
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.rows import Row

Chat = list[dict[str, str]]
Render = Callable[[str, Row], list[int]]
"""(what to call the row in an error, row) -> token ids. Raises `DataError`."""

PROBE = "Is this text in the prompt?"


def messages(data: Data, where: str, row: Row) -> Chat:
    """The chat of this row. `data.template` makes the user message; of a given chat, its last user message."""
    given = row.get("prompt")
    if isinstance(given, str):
        chat = [{"role": "user", "content": _fill(data, where, row, given)}]
    elif _is_chat(given):
        chat = [dict(message) for message in given]
        for message in reversed(chat):
            if message["role"] == "user":
                message["content"] = _fill(data, where, row, message["content"])
                break
    else:
        raise DataError(f"{where}: column `prompt` must be text or a list of {{role, content}}, not {given!r:.80}")
    if data.system and chat[0]["role"] != "system":
        chat.insert(0, {"role": "system", "content": data.system})
    return chat


def _is_chat(given: Any) -> TypeGuard[Chat]:
    def is_message(part: Any) -> bool:
        return isinstance(part, dict) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)

    return isinstance(given, list) and len(given) > 0 and all(map(is_message, given))


def _fill(data: Data, where: str, row: Row, content: str) -> str:
    try:
        return data.template.format_map({**row, "prompt": content})
    except KeyError as error:
        raise DataError(
            f"{where}: data.template names the column {error}, the row has {', '.join(sorted(row))}"
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"data.template {data.template!r}: {error}; write a literal brace twice") from None


class Renderer:
    """Blocking to build (reads the tokenizer) and safe to call from several threads.

    Without a model's folder (the trace engine has no tokenizer) a prompt's bytes are its tokens.
    """

    def __init__(self, config: Config, folder: Path | None) -> None:
        self._limit = config.rollout.max_prompt_length
        self._data = config.data
        self._tokenizer = load_tokenizer(config, folder) if folder else None
        self._lock = threading.Lock()  # a fast tokenizer may not be used by two threads at once

    @property
    def has_template(self) -> bool:
        """Whether a chat template is used; otherwise messages are joined by blank lines."""
        return bool(self._tokenizer and self._tokenizer.chat_template)

    def __call__(self, where: str, row: Row) -> list[int]:
        tokens = self._tokens([self.text(where, row)])[0]
        if len(tokens) > self._limit:
            raise DataError(
                f"{where} has {len(tokens)} tokens, rollout.max_prompt_length is {self._limit}: raise it, or leave"
                ' the row out (data.overlong = "drop")'
            )
        if not tokens:
            raise DataError(f"{where} is empty: it has no token")
        return tokens

    def text(self, where: str, row: Row) -> str:
        """What the model is given, special tokens in their written form."""
        chat = messages(self._data, where, row)
        if not self.has_template:
            return "\n\n".join(message["content"] for message in chat)
        begun = chat[-1]["role"] == "assistant"  # TRL's convention: an answer that is begun is to be continued
        try:
            with self._lock:
                return _apply(self._tokenizer, chat, add_generation_prompt=not begun, continue_final_message=begun)
        except Exception as error:  # a template is a program of its author's
            raise DataError(
                f"{where}: the chat template refuses it ({type(error).__name__}: {error}){self._advice(row, chat)}"
            ) from None

    def lengths(self, rows: Sequence[tuple[str, Row]]) -> list[int]:
        """Prompt tokens of many (where, row), however long."""
        found: list[int] = []
        for start in range(0, len(rows), 1024):
            batch = rows[start : start + 1024]
            found += map(len, self._tokens([self.text(where, row) for where, row in batch]))
        return found

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if self._tokenizer is None:
            return [list(text.encode()) for text in texts]
        with self._lock:
            read = self._tokenizer(texts, add_special_tokens=not self.has_template, verbose=False)
        return [list(tokens) for tokens in read.input_ids]

    def _advice(self, row: Row, chat: Chat) -> str:
        if chat[0]["role"] != "system":
            roles = ", ".join(message["role"] for message in chat)
            return f": the row's roles are {roles}; model.chat_template can name a file with another template"
        if not isinstance(row["prompt"], list) or len(chat) > len(row["prompt"]):
            return ": if it knows no system message, write data.system's words into data.template instead"
        return ": if it knows no system message, move the row's into its user message, or give model.chat_template"


def load_tokenizer(config: Config, folder: Path) -> Any:
    """The tokenizer of that folder with the chat template that is to be used. Raises `ConfigError`."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("reading a tokenizer needs transformers: pip install 'rhymed[rollout]'") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of many libraries
        raise ConfigError(f"{folder}: no tokenizer could be read there: {error}") from None
    given = config.model.chat_template
    if given:
        file = Path(given).expanduser()
        try:
            tokenizer.chat_template = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            from rhymed.inputs.files import beside

            reason = getattr(error, "strerror", None) or error
            near = beside(file) if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"model.chat_template = {given!r}: {reason}{near}") from None
    if tokenizer.chat_template:
        _probe(tokenizer, f"model.chat_template = {given!r}" if given else f"the chat template in {folder}")
    return tokenizer


def _probe(tokenizer: Any, name: str) -> None:
    """A template that cannot be read, or leaves out what is asked, is no row's fault."""
    from jinja2 import TemplateSyntaxError

    try:
        text = _apply(tokenizer, [{"role": "user", "content": PROBE}], add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: not a Jinja template: {error.message}") from None
    except Exception:  # refuses this chat; perhaps none of the rows
        return
    if PROBE not in text:
        raise ConfigError(f"{name} leaves out the user's message: it must write message['content'] of `messages`")


def _apply(tokenizer: Any, chat: Chat, **options: bool) -> str:
    return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))


def load_renderer(config: Config) -> Renderer:
    """Blocking: reads a tokenizer from disk where the engine has a model."""
    if config.rollout.engine == "trace":
        return Renderer(config, None)
    from rhymed.inputs.models import resolve_model

    return Renderer(config, resolve_model(config))
