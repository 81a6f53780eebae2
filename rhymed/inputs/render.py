"""From a dataset row to prompt tokens: template, system message, chat template, tokenizer.

A `Renderer` is pure once built. Errors name a row as its caller does: `prompt 0123456789abcdef` if only the id is
known, `train.jsonl, line 7` when the dataset is loaded. Knows nothing of engines, nor where rows come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, TypeGuard

from rhymed.config import Config, Dataset, Model
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.rows import Row
from rhymed.inputs.tokenizer import read_tokenizer

Chat = list[dict[str, str]]
Render = Callable[[str, Row], list[int]]
"""(name of the row for errors, row) -> token ids. Raises `DataError`."""

PROBE = "Is this text in the prompt?"


def messages(data: Dataset, where: str, row: Row) -> Chat:
    """The chat of this row. `data.template` is applied to a text prompt, or to the last user message of a chat."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        chat = [{"role": "user", "content": _fill(data, where, row, prompt)}]
    elif _is_chat(prompt):
        chat = [dict(message) for message in prompt]
        for message in reversed(chat):
            if message["role"] == "user":
                message["content"] = _fill(data, where, row, message["content"])
                break
    else:
        raise DataError(f"{where}: column `prompt` must be text or a list of {{role, content}}, not {prompt!r:.80}")
    if data.system and chat[0]["role"] != "system":
        chat.insert(0, {"role": "system", "content": data.system})
    return chat


def _is_chat(prompt: Any) -> TypeGuard[Chat]:
    def is_message(part: Any) -> bool:
        return isinstance(part, dict) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)

    return isinstance(prompt, list) and len(prompt) > 0 and all(map(is_message, prompt))


def _fill(data: Dataset, where: str, row: Row, content: str) -> str:
    try:
        return data.template.format_map({**row, "prompt": content})
    except KeyError as error:
        raise DataError(
            f"{where}: data.template names the column {error}, the row has {', '.join(sorted(row))}"
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"data.template {data.template!r}: {error}; write a literal brace twice") from None


class Renderer:
    """Thread-safe. Without a tokenizer, as for the trace engine, a prompt's bytes are its tokens."""

    def __init__(self, data: Dataset, max_prompt_length: int, tokenizer: Any = None) -> None:
        self._data, self._limit, self._tokenizer = data, max_prompt_length, tokenizer
        self._lock = threading.Lock()  # fast tokenizers are not thread-safe

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
        """The model's input as text, with special tokens."""
        chat = messages(self._data, where, row)
        if not self.has_template:
            return "\n\n".join(message["content"] for message in chat)
        continued = chat[-1]["role"] == "assistant"  # as in TRL: the model continues this answer
        try:
            with self._lock:
                return _apply(
                    self._tokenizer, chat, add_generation_prompt=not continued, continue_final_message=continued
                )
        except Exception as error:  # a template may raise anything
            raise DataError(
                f"{where}: the chat template refuses it ({type(error).__name__}: {error}){self._advice(row, chat)}"
            ) from None

    def lengths(self, rows: Sequence[tuple[str, Row]]) -> list[int]:
        """Prompt tokens of many (where, row), without the limit."""
        lengths: list[int] = []
        for start in range(0, len(rows), 1024):
            batch = rows[start : start + 1024]
            lengths += map(len, self._tokens([self.text(where, row) for where, row in batch]))
        return lengths

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if self._tokenizer is None:
            return [list(text.encode()) for text in texts]
        with self._lock:
            encoded = self._tokenizer(texts, add_special_tokens=not self.has_template, verbose=False)
        return [list(tokens) for tokens in encoded.input_ids]

    def _advice(self, row: Row, chat: Chat) -> str:
        if chat[0]["role"] != "system":
            roles = ", ".join(message["role"] for message in chat)
            return f": the row's roles are {roles}; model.chat_template can name a file with another template"
        if not isinstance(row["prompt"], list) or len(chat) > len(row["prompt"]):
            return ": if it knows no system message, write data.system's words into data.template instead"
        return ": if it knows no system message, move the row's into its user message, or give model.chat_template"


def load_tokenizer(model: Model, folder: Path) -> Any:
    """The tokenizer of that folder, with `model.chat_template` if that is set. Raises `ConfigError`."""
    try:
        tokenizer = read_tokenizer(folder)
    except PackageNotFoundError:
        raise ConfigError("reading a tokenizer needs transformers: pip install 'rhymed[rollout]'") from None
    except Exception as error:  # of several libraries
        raise ConfigError(f"{folder}: its tokenizer cannot be read: {error}") from None
    template = model.chat_template
    if template:
        file = Path(template).expanduser()
        try:
            tokenizer.chat_template = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            from rhymed.inputs.files import similar

            reason = getattr(error, "strerror", None) or error
            near = similar(file) if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"model.chat_template = {template!r}: {reason}{near}") from None
    if tokenizer.chat_template:
        _check_template(
            tokenizer, f"model.chat_template = {template!r}" if template else f"the chat template in {folder}"
        )
    return tokenizer


def _check_template(tokenizer: Any, name: str) -> None:
    """Raises `ConfigError` for a template that is not valid, or leaves out the user's message."""
    from jinja2 import TemplateSyntaxError

    try:
        text = _apply(tokenizer, [{"role": "user", "content": PROBE}], add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: not a Jinja template: {error.message}") from None
    except Exception:  # it refuses this chat, but perhaps none of the rows
        return
    if PROBE not in text:
        raise ConfigError(f"{name} leaves out the user's message: it must write message['content'] of `messages`")


def _apply(tokenizer: Any, chat: Chat, **options: bool) -> str:
    return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))


def load_renderer(config: Config) -> Renderer:
    """Blocking: reads a tokenizer from disk, unless the engine is the trace engine."""
    if config.rollout.engine == "trace":
        return Renderer(config.data, config.rollout.max_prompt_length)
    from rhymed.inputs.models import resolve_model

    tokenizer = load_tokenizer(config.model, resolve_model(config))
    return Renderer(config.data, config.rollout.max_prompt_length, tokenizer)
