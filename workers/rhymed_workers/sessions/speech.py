"""Messages of programs as tokens, and turns as messages: every call may offer other tools.

A tokenizer serves one caller at a time, so all of it is done in one thread.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from rhymed.config import Config
from rhymed.errors import CallRefused, DataError
from rhymed_workers.sessions.calls import spoken
from rhymed_workers.sessions.chat.messages import Message, ToolCall, readable
from rhymed_workers.sessions.dialogue import Dialogue

Result = TypeVar("Result")
Tools = Sequence[dict[str, Any]]

CACHED_TOOLS = 64  # lists of tools
NO_LIMIT = 1 << 40  # tokens: who asks compares with what there is room for
PROBE = "stand_in_for_a_call"


class Speech:
    """`tokenizer` None: as for the trace engine, a text's bytes are its tokens. `vocabulary`: ids are below it; None:
    any may be."""

    def __init__(self, tokenizer: Any, parser: str, vocabulary: int | None = None) -> None:
        self._tokenizer, self._parser, self._vocabulary = tokenizer, parser, vocabulary
        self._dialogues: OrderedDict[bytes, Dialogue] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "speech")
        self._shows_calls = tokenizer is not None and self._renders_calls()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def checked(self, tokens: Sequence[int]) -> Sequence[int]:
        """Raises `CallRefused` for one that the model does not have: an engine would end with an error."""
        if self._vocabulary is not None and (largest := max(tokens)) >= self._vocabulary:
            raise CallRefused(
                f"token_ids has {largest}, and the model's ids are below {self._vocabulary}", param="token_ids"
            )
        return tokens

    async def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Raises `CallRefused`."""
        return await self._do(lambda: self._prompt(messages, tools))

    async def suffix(self, messages: Sequence[Message], since: int, tools: Tools, last: int) -> list[int]:
        """What follows a turn whose last token is `last`: the messages from number `since` on."""
        return await self._do(lambda: self._suffix(messages, since, tools, last))

    async def message(self, tokens: Sequence[int], tools: Tools, name: str) -> Message:
        """What a turn says. `tools`: none if its calls are not to be read. `name`: makes the ids of its calls."""
        return await self._do(lambda: self._message(tokens, tools, name))

    async def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""
        if self._tokenizer is None:
            return list(map(str, tokens))
        return await self._do(lambda: [str(self._tokenizer.decode([token])) for token in tokens])

    async def _do(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _dialogue(self, tools: Tools) -> Dialogue:
        key = msgspec.json.encode(tools, order="sorted")
        if key not in self._dialogues:
            try:
                self._dialogues[key] = Dialogue(self._tokenizer, tools, NO_LIMIT, self._parser)
            except Exception as error:  # a parser of vLLM may raise anything
                if not tools:
                    raise
                raise CallRefused(str(error), param="tools") from None
            if len(self._dialogues) > CACHED_TOOLS:
                self._dialogues.popitem(last=False)
        self._dialogues.move_to_end(key)
        return self._dialogues[key]

    def _prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        chat = readable(messages, shows_calls=self._shows_calls)
        try:
            return self._dialogue(tools).prompt("the call", chat)
        except DataError as error:
            raise CallRefused(str(error), param="messages") from None

    def _suffix(self, messages: Sequence[Message], since: int, tools: Tools, last: int) -> list[int]:
        chat = readable(messages, shows_calls=self._shows_calls)[since:]
        try:
            return self._dialogue(tools).suffix(chat, last)
        except Exception as error:  # a template may raise anything
            raise CallRefused(f"the chat template refuses the messages ({error})", param="messages") from None

    def _message(self, tokens: Sequence[int], tools: Tools, name: str) -> Message:
        read = self._dialogue(tools).read(tokens)
        if not (tools and read.calls):
            return Message("assistant", read.text)
        text = read.text if self._parser == "hermes" else self._tokenizer.decode(list(tokens))
        calls = [
            ToolCall(f"{name[:8]}{place}", call.name, json.dumps(call.arguments, ensure_ascii=False))
            for place, call in enumerate(read.calls)
        ]
        return Message("assistant", spoken(self._parser, self._tokenizer, tools, text).strip(), tuple(calls))

    def _renders_calls(self) -> bool:
        call = ToolCall("call_0", PROBE, "{}")
        chat = [Message("user", "?"), Message("assistant", "", (call,)), Message("tool", "!", answers="call_0")]
        try:
            text = self._tokenizer.apply_chat_template(readable(chat, shows_calls=True), tokenize=False)
        except Exception:  # a template may raise anything
            return False
        return PROBE in text


def load_speech(config: Config) -> Speech:
    """Blocking: reads the model's tokenizer. Raises `ConfigError`."""
    tokenizer = vocabulary = None
    if config.rollout.engine != "trace":
        from rhymed.inputs.models import resolve_model
        from rhymed.inputs.render import load_tokenizer
        from rhymed.inputs.tokenizer import read_vocabulary

        folder = resolve_model(config)
        tokenizer = load_tokenizer(config.model, folder)
        vocabulary = read_vocabulary(folder / "tokenizer.json").size
    speech = Speech(tokenizer, config.environment.parser, vocabulary)
    speech._dialogue([])  # so that a model without a chat template, or a wrong parser, is an error at once
    return speech
