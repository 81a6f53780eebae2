"""A sample's chat as tokens: its prompt, what is put between two turns, and what a turn says.

Tokens that the policy wrote are never made again from text. What follows a turn is rendered with a stand-in for the
turn; the text after the stand-in is tokenised alone. Thread-safe.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError, DataError
from rhymed_workers.sessions.calls import Chat, Read, parser_of

TURN, RESULT = "STAND-IN-FOR-A-TURN", "STAND-IN-FOR-A-RESULT"
TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{schemas}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML"
    ' tags:\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""As Qwen 2.5's template has it: for templates that do not know tools."""


class Dialogue:
    """`tokenizer` None: as for the trace engine, a text's bytes are its tokens."""

    def __init__(
        self, tokenizer: Any, tools: Sequence[dict[str, Any]], max_prompt_length: int, parser: str = "hermes"
    ) -> None:
        self._tokenizer, self._tools, self._limit = tokenizer, list(tools), max_prompt_length
        self._parse = parser_of(parser, tokenizer, tools)
        self._lock = threading.Lock()  # fast tokenizers are not thread-safe
        if tokenizer is not None:
            if not tokenizer.chat_template:
                raise ConfigError("the model has no chat template, which turns need: name one in model.chat_template")
            self._knows_tools = not tools or self._shows_tools()
            self._knows_results = self._shows_results()

    def prompt(self, where: str, chat: Chat, tools: Sequence[str] | None = None) -> list[int]:
        """With the beginning of the policy's turn. `tools`: names of those that the sample has; None: all.

        Raises `DataError` that begins with `where`."""
        shown = [tool for tool in self._tools if tools is None or tool["function"]["name"] in tools]
        try:
            tokens = self._tokens(self._text(chat, shown))
        except DataError:
            raise
        except Exception as error:  # a template may raise anything
            raise DataError(f"{where}: the chat template refuses it ({type(error).__name__}: {error})") from None
        if not 0 < len(tokens) <= self._limit:
            raise DataError(
                f"{where} has {len(tokens)} tokens, its environment and tools included; rollout.max_prompt_length is"
                f" {self._limit}"
            )
        return tokens

    def suffix(self, messages: Chat, last: int) -> list[int]:
        """The tokens between a turn, whose last token is `last`, and the next one."""
        if self._tokenizer is None:
            return list(
                "".join(f"\n\n{text}" for text in [*(message["content"] for message in messages), ""]).encode()
            )
        chat = [*_user(), {"role": "assistant", "content": TURN}, *self._results(messages)]
        text = self._render(chat, add_generation_prompt=True)
        rest = text[text.index(TURN) + len(TURN) :]  # the first: what follows may have these words, too
        return self._tokens(rest.removeprefix(self._decode([last], special=True)))

    def read(self, tokens: Sequence[int]) -> Read:
        """A turn's text, and the calls in it."""
        if self._tokenizer is None:
            text = bytes(token for token in tokens if token < 256).decode(errors="replace")
            return Read(" ".join(map(str, tokens)), *self._parse(text))
        calls, malformed = self._parse(self._decode(tokens, special=True))
        return Read(self._decode(tokens, special=False), calls, malformed)

    def shown(self, tokens: Sequence[int]) -> str:
        """Their text, with special tokens."""
        if self._tokenizer is None:
            return bytes(token % 256 for token in tokens).decode(errors="replace")
        return self._decode(tokens, special=True)

    def problem(self) -> str:
        """Why the policy reads a chat that the template would not write; empty: it reads what the template writes."""
        if self._tokenizer is None:
            return ""
        turn = f"<think>\na\n</think>\n\n{TURN}"
        result = self._results([{"role": "tool", "name": "f", "content": RESULT}])
        chat = [*_user(), {"role": "assistant", "content": turn}, *result]
        read = self._render(chat, add_generation_prompt=True)
        if RESULT not in read:
            return "the chat template leaves out what tools return"
        if not read.startswith(self._render(_user(), add_generation_prompt=True) + turn):
            return (
                "the chat template rewrites earlier turns (as those that take out <think> do): the policy keeps what"
                " it wrote, and reads another chat than the template makes"
            )
        return ""

    def _text(self, chat: Chat, tools: Sequence[dict[str, Any]]) -> str:
        if self._tokenizer is None:
            return "\n\n".join(message["content"] for message in chat)
        chat = self._results(chat)
        if self._knows_tools or not tools:
            return self._render(chat, tools=tools or None, add_generation_prompt=True)
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return self._render(_with_system(chat, TOOLS.format(schemas=listed)), add_generation_prompt=True)

    def _results(self, messages: Chat) -> Chat:
        """For a template without a role for tools, results are words of the user."""
        if self._knows_results:
            return messages
        return [
            {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
            if message["role"] == "tool"
            else message
            for message in messages
        ]

    def _shows_tools(self) -> bool:
        """Raises `ConfigError`."""
        try:
            return self._render(_user(), tools=self._tools) != self._render(_user())
        except Exception as error:  # a template may raise anything
            raise ConfigError(f"the chat template refuses the tools ({type(error).__name__}: {error})") from None

    def _shows_results(self) -> bool:
        chat = [*_user(), {"role": "assistant", "content": TURN}, {"role": "tool", "name": "f", "content": RESULT}]
        try:
            return RESULT in self._render(chat, add_generation_prompt=True)
        except Exception:  # a template may raise anything
            return False

    def _render(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        with self._lock:
            return str(self._tokenizer.apply_chat_template(list(chat), tokenize=False, **options))

    def _tokens(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return list(text.encode())
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def _decode(self, tokens: Sequence[int], *, special: bool) -> str:
        with self._lock:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))


def _user() -> Chat:
    return [{"role": "user", "content": "?"}]


def _with_system(chat: Chat, text: str) -> Chat:
    if chat and chat[0]["role"] == "system":
        return [{**chat[0], "content": f"{chat[0]['content']}\n\n{text}"}, *chat[1:]]
    return [{"role": "system", "content": text}, *chat]


def load_dialogue(config: Config, tools: Sequence[dict[str, Any]], limit: int = 0) -> Dialogue:
    """Blocking: reads the model's tokenizer. `limit`: of a prompt's tokens; 0: the run's. Raises `ConfigError`."""
    tokenizer = None
    if config.rollout.engine != "trace":
        from rhymed.inputs.models import resolve_model
        from rhymed.inputs.render import load_tokenizer

        tokenizer = load_tokenizer(config.model, resolve_model(config))
    return Dialogue(tokenizer, tools, limit or config.rollout.max_prompt_length, config.environment.parser)
