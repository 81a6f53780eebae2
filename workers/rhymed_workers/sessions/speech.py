"""Messages of programs as tokens, and turns as messages: every call may offer other tools.

A tokenizer serves one caller at a time, so all of it is done in one thread.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from rhymed.core.config import Config
from rhymed.core.errors import CallRefused, DataError, EnvironmentDown
from rhymed.inputs.chats import Chat, ChatTemplate
from rhymed_workers.sessions.calls import Read
from rhymed_workers.sessions.completions import NO_LIMIT
from rhymed_workers.sessions.dialogue import Dialogue, load_template
from rhymed_workers.sessions.messages import Message, ToolCall, readable

Result = TypeVar("Result")
Tools = Sequence[dict[str, Any]]
Options = Mapping[str, Any]
NONE: Options = {}

CACHED_TOOLS = 64  # lists of tools


class Speech:
    """`template` None: as for the trace engine, a text's bytes are its tokens."""

    def __init__(self, template: ChatTemplate | None, parser: str) -> None:
        self._template, self._parser = template, parser
        self._dialogues: OrderedDict[bytes, Dialogue] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "speech")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def prompt(self, messages: Sequence[Message], tools: Tools, options: Options = NONE) -> list[int]:
        """`options`: of the chat template, for this call. Raises `CallRefused`."""
        chat = self._chat(messages)
        return await self._tokens(lambda: self._dialogue(tools).prompt("the call", chat, options=options))

    async def suffix(
        self,
        messages: Sequence[Message],
        since: int,
        tools: Tools,
        turn: Sequence[int],
        options: Options = NONE,
        stop: Sequence[str] = (),
    ) -> list[int]:
        """The tokens after a turn: the messages from number `since` on. `stop`: strings that ended the turn."""
        chat = self._chat(messages)[since:]
        return await self._tokens(lambda: self._dialogue(tools).suffix(chat, turn, options, stop))

    async def message(
        self, tokens: Sequence[int], tools: Tools, name: str, before: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> Message:
        """The content of a turn. `tools`: none if its calls are not to be read. `name`: makes the ids of its calls.
        `before`: the tokens before the turn. `stop`: strings of which the text has none, as it ends before them."""

        def work() -> Message:
            dialogue = self._dialogue(tools)
            read = dialogue.read(tokens, before) if tools else Read(dialogue.text(tokens))
            if not read.calls:
                return Message("assistant", _until(read.text, stop))
            calls = [
                ToolCall(f"{name[:8]}{place}", call.name, json.dumps(call.arguments, ensure_ascii=False))
                for place, call in enumerate(read.calls)
            ]
            return Message("assistant", dialogue.spoken(_until(read.content, stop)), tuple(calls))

        return await self._do(work)

    async def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""
        template = self._template
        if template is None:
            return list(map(str, tokens))
        return await self._do(lambda: [template.decode([token]) for token in tokens])

    async def _tokens(self, work: Callable[[], list[int]]) -> list[int]:
        try:
            return await self._do(work)
        except DataError as error:
            raise CallRefused(str(error), param="messages") from None

    async def _do(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _dialogue(self, tools: Tools) -> Dialogue:
        key = msgspec.json.encode(tools, order="sorted")
        if key not in self._dialogues:
            try:
                self._dialogues[key] = Dialogue(self._template, tools, NO_LIMIT, self._parser)
            except EnvironmentDown:  # not the caller's fault
                raise
            except Exception as error:  # a parser of vLLM may raise anything
                if not tools:
                    raise
                raise CallRefused(str(error), param="tools") from None
            if len(self._dialogues) > CACHED_TOOLS:
                self._dialogues.popitem(last=False)
        self._dialogues.move_to_end(key)
        return self._dialogues[key]

    def _chat(self, messages: Sequence[Message]) -> Chat:
        return readable(messages, shows_calls=self._template is not None and self._template.shows_calls)


def _until(text: str, stop: Sequence[str]) -> str:
    return text[: min((place for string in stop if (place := text.find(string)) >= 0), default=None)]


def load_speech(config: Config) -> Speech:
    """Blocking: reads the model's tokenizer. Raises `ConfigError`."""
    speech = Speech(load_template(config), config.environment.parser)
    speech._dialogue([])  # so that a model without a chat template, or a wrong parser, is an error at once
    return speech
