"""From a dataset row to prompt tokens: template, system message, chat template, tokenizer.

A `Renderer` is pure once built. Errors name a row as its caller does: `prompt 0123456789abcdef` if only the id is
known, `train.jsonl, line 7` when the dataset is loaded. Knows nothing of engines, nor where rows come from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, TypeGuard

from rhymed.core.config import Config, Dataset, Model
from rhymed.core.config.inputs import RESERVED
from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.chats import Chat, ChatTemplate, without_marks
from rhymed.inputs.columns import filled
from rhymed.inputs.rows import Row
from rhymed.inputs.tokenizer import read_tokenizer, render

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
        return data.template.format_map({**filled(row), "prompt": content})
    except KeyError as error:
        raise DataError(
            f"{where}: data.template names the column {error}, the row has {', '.join(sorted(row))}"
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"data.template {data.template!r}: {error}; write a literal brace twice") from None


class Renderer:
    """Thread-safe. Without a tokenizer, as for the trace engine, a prompt's bytes are its tokens. `options`:
    arguments of the chat template, `model.chat_template_kwargs`."""

    def __init__(
        self, data: Dataset, max_prompt_length: int, tokenizer: Any = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self._data, self._limit = data, max_prompt_length
        self.template = None if tokenizer is None else ChatTemplate(tokenizer, options)
        self._front = front_of(tokenizer) if tokenizer is not None and not tokenizer.chat_template else []

    @property
    def has_template(self) -> bool:
        """Whether a chat template is used; otherwise messages are joined by blank lines."""
        return bool(self.template and self.template.tokenizer.chat_template)

    def __call__(self, where: str, row: Row) -> list[int]:
        tokens = self._tokens([self._text(where, row)])[0]
        if len(tokens) > self._limit:
            raise DataError(
                f"{where} has {len(tokens)} tokens, rollout.max_prompt_length is {self._limit}: raise it, or leave"
                ' the row out (data.overlong = "drop")'
            )
        if not tokens:
            raise DataError(f"{where} is empty: it has no token")
        return tokens

    def text(self, where: str, row: Row) -> str:
        """The model's input as text, with special tokens of the chat template."""
        return without_marks(self._text(where, row))

    def shown(self, where: str, row: Row) -> str:
        """The prompt as the model reads it: the tokens as text, with all special tokens."""
        text = self._text(where, row)
        return without_marks(text) if self.template is None else self.template.decode(self._tokens([text])[0])

    def lengths(self, rows: Sequence[tuple[str, Row]]) -> list[int]:
        """Prompt tokens of many (where, row), without the limit."""
        lengths: list[int] = []
        for start in range(0, len(rows), 1024):
            batch = rows[start : start + 1024]
            lengths += map(len, self._tokens([self._text(where, row) for where, row in batch]))
        return lengths

    def _text(self, where: str, row: Row) -> str:
        chat = messages(self._data, where, row)
        if self.template is None or not self.has_template:
            return "\n\n".join(message["content"] for message in chat)
        options, tools = options_of(where, row), tools_of(where, row)
        continued = chat[-1]["role"] == "assistant"  # as in TRL: the model continues this answer
        try:
            return self.template.text(chat, tools, options, continued=continued)
        except Exception as error:  # a template may raise anything
            raise DataError(
                f"{where}: the chat template refuses it ({type(error).__name__}: {error}): its roles are"
                f" {', '.join(message['role'] for message in chat)}; move the words of a system message that it does"
                " not know into data.template, or name a file with another template in model.chat_template"
            ) from None

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if self.template is None:
            return [list(text.encode()) for text in texts]
        front = self._front
        return [
            tokens if tokens[: len(front)] == front else [*front, *tokens] for tokens in self.template.batch(texts)
        ]


def front_of(tokenizer: Any) -> list[int]:
    """Special tokens with which a text begins that has no chat template: what the tokenizer adds before it. What it
    adds after a text (</s>, [SEP]) would end a prompt that the model is to continue."""
    bare = list(tokenizer("a", add_special_tokens=False, verbose=False).input_ids)
    whole = list(tokenizer("a", verbose=False).input_ids)
    start = next((start for start in range(len(whole)) if whole[start : start + len(bare)] == bare), 0)
    return whole[:start]


def options_of(where: str, row: Row) -> dict[str, Any]:
    """The row's own `chat_template_kwargs`: an object, or its JSON. Raises `DataError`."""
    given = _decoded(row.get("chat_template_kwargs"))
    if given is None or given == "":
        return {}
    if not isinstance(given, dict):
        raise DataError(f"{where}: column `chat_template_kwargs` must be an object, not {given!r:.80}")
    if taken := sorted(RESERVED & given.keys()):
        raise DataError(f"{where}: column `chat_template_kwargs`: {', '.join(taken)} cannot be set: rhymed passes it")
    return {name: value for name, value in given.items() if value is not None}


def tools_of(where: str, row: Row) -> list[dict[str, Any]]:
    """Schemas of the row's own column `tools`: a list of OpenAI's objects, or its JSON, as in TRL's datasets. A
    column with other content is not read. Raises `DataError`."""
    given = _decoded(row.get("tools"))
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        return []
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in given]
    for tool in tools:
        if not isinstance(tool["function"], dict) or not isinstance(tool["function"].get("name"), str):
            raise DataError(f"{where}: column `tools` has a schema without a name: {tool!r:.120}")
    return tools


def _decoded(value: Any) -> Any:
    """Arrow has no type for objects of different shapes, so datasets have them as JSON."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


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
        chat = [{"role": "user", "content": PROBE}]
        text = render(tokenizer, chat, add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: not a Jinja template: {error.message}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except Exception:  # it refuses this chat, but perhaps none of the rows
        return
    if PROBE not in text:
        raise ConfigError(f"{name} leaves out the user's message: it must write message['content'] of `messages`")


def load_renderer(config: Config) -> Renderer:
    """Blocking: reads a tokenizer from disk, unless the engine is the trace engine."""
    if config.rollout.engine == "trace":
        return Renderer(config.data, config.rollout.max_prompt_length)
    from rhymed.inputs.models import resolve_model

    tokenizer = load_tokenizer(config.model, resolve_model(config))
    return Renderer(config.data, config.rollout.max_prompt_length, tokenizer, config.model.chat_template_kwargs)
