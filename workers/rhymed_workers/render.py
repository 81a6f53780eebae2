"""From a dataset row to prompt tokens: template, system message, the tokenizer's own chat template.

`Renderer` is pure once built; `PromptCache` fetches rows and keeps their tokens. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rhymed.config import Config
from rhymed.data import Row
from rhymed.errors import ConfigError, DataError

Chat = list[dict[str, str]]
Render = Callable[[str, Row], list[int]]
"""(prompt id, row) -> token ids. Raises `DataError` naming the prompt."""

CACHED_PROMPTS = 8192


def messages(config: Config, prompt: str, row: Row) -> Chat:
    """The chat of this row. `data.template` makes the user message; of a given chat, its last user message."""
    given = row.get("prompt")
    if isinstance(given, str):
        chat = [{"role": "user", "content": _fill(config, prompt, row, given)}]
    elif _is_chat(given):
        chat = [dict(message) for message in given]
        for message in reversed(chat):
            if message["role"] == "user":
                message["content"] = _fill(config, prompt, row, message["content"])
                break
    else:
        raise DataError(
            f"prompt {prompt}: column `prompt` must be text or a list of {{role, content}}, not {given!r:.80}"
        )
    if config.data.system and chat[0]["role"] != "system":
        chat.insert(0, {"role": "system", "content": config.data.system})
    return chat


def _is_chat(given: Any) -> TypeGuard[Chat]:
    def is_message(part: Any) -> bool:
        return isinstance(part, dict) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)

    return isinstance(given, list) and len(given) > 0 and all(map(is_message, given))


def _fill(config: Config, prompt: str, row: Row, content: str) -> str:
    try:
        return config.data.template.format_map({**row, "prompt": content})
    except KeyError as error:
        raise DataError(
            f"prompt {prompt}: data.template names the column {error}, the row has {', '.join(sorted(row))}"
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"data.template {config.data.template!r}: {error}; write a literal brace twice") from None


class Renderer:
    """Blocking to build (reads the tokenizer) and safe to call from several threads."""

    def __init__(self, config: Config, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._config = config
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: no tokenizer could be read there: {error}") from None
        self._lock = threading.Lock()  # a fast tokenizer may not be used by two threads at once

    def __call__(self, prompt: str, row: Row) -> list[int]:
        chat = messages(self._config, prompt, row)
        with self._lock:
            tokens = self._encode(prompt, chat)
        return _check(self._config, prompt, tokens)

    def _encode(self, prompt: str, chat: Chat) -> list[int]:
        if not self._tokenizer.chat_template:
            text = "\n\n".join(message["content"] for message in chat)
            return list(self._tokenizer(text).input_ids)
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise DataError(f"prompt {prompt}: the tokenizer's chat template refuses it: {error}") from None
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)


def trace_renderer(config: Config) -> Render:
    """The trace engine has no tokenizer: a prompt's bytes are its tokens."""

    def render(prompt: str, row: Row) -> list[int]:
        text = "\n\n".join(message["content"] for message in messages(config, prompt, row))
        return _check(config, prompt, list(text.encode()))

    return render


def load_renderer(config: Config) -> Render:
    """Blocking: reads a tokenizer from disk where the engine has a model."""
    if config.rollout.engine == "trace":
        return trace_renderer(config)
    from rhymed.models import resolve_model

    return Renderer(config, resolve_model(config))


def _check(config: Config, prompt: str, tokens: list[int]) -> list[int]:
    limit = config.rollout.max_prompt_length
    if len(tokens) > limit:
        raise DataError(
            f"prompt {prompt} has {len(tokens)} tokens, rollout.max_prompt_length is {limit}: raise it, or leave the"
            " row out"
        )
    if not tokens:
        raise DataError(f"prompt {prompt} is empty: it has no token")
    return tokens


class PromptCache:
    """Tokens of prompts, each fetched and rendered once while it is among the last `CACHED_PROMPTS` used."""

    def __init__(self, fetch: Callable[[Sequence[str]], Awaitable[list[Row]]], render: Render) -> None:
        self._fetch = fetch
        self._render = render
        self._known: OrderedDict[str, asyncio.Task[list[int]]] = OrderedDict()

    async def tokens(self, prompt: str) -> list[int]:
        """Raises what fetching or rendering raised; that is not remembered."""
        task = self._known.get(prompt)
        if task is None:
            task = self._known[prompt] = asyncio.get_running_loop().create_task(self._make(prompt))
            while len(self._known) > CACHED_PROMPTS:
                self._known.popitem(last=False)
        self._known.move_to_end(prompt)
        try:
            return await asyncio.shield(task)  # siblings wait for the same one
        except BaseException:
            if task.done() and self._known.get(prompt) is task:
                del self._known[prompt]
            raise

    async def _make(self, prompt: str) -> list[int]:
        rows = await self._fetch([prompt])
        return await asyncio.to_thread(self._render, prompt, rows[0])

    def close(self) -> None:
        for task in self._known.values():
            task.cancel()
