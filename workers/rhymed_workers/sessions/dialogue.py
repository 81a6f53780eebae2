"""A sample's chat as tokens: its prompt, the tokens between two turns, and the content of a turn. Thread-safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.chats import Chat, ChatTemplate
from rhymed_workers.sessions.calls import Read, apart, begins_thought, parser_of

BEGINNING = 32  # last tokens of a prompt, with the tokens with which the template begins a turn


class Dialogue:
    """`template` None: as for the trace engine, a text's bytes are its tokens."""

    def __init__(
        self,
        template: ChatTemplate | None,
        tools: Sequence[dict[str, Any]],
        max_prompt_length: int,
        parser: str = "hermes",
    ) -> None:
        self.template, self._tools, self._limit = template, list(tools), max_prompt_length
        self._parse = parser_of(parser, template.tokenizer if template else None, tools)
        if template is not None:
            if not template.tokenizer.chat_template:
                raise ConfigError("the model has no chat template, which turns need: name one in model.chat_template")
            if tools:
                template.knows_tools(tools)

    def prompt(
        self,
        where: str,
        chat: Chat,
        tools: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """With the beginning of the policy's turn. `tools`: names of those that the sample has; None: all.
        `options`: the row's own, of the chat template.

        Raises `DataError` that begins with `where`."""
        shown = [tool for tool in self._tools if tools is None or tool["function"]["name"] in tools]
        try:
            tokens = self._prompt(chat, shown, options)
        except Exception as error:  # a template may raise anything
            roles = ", ".join(message["role"] for message in chat)
            raise DataError(
                f"{where}: the chat template refuses it ({type(error).__name__}: {error}): its roles are {roles}; a"
                " system message may also come from data.system"
            ) from None
        if not tokens:
            raise DataError(f"{where} has no tokens: a prompt has at least one")
        if len(tokens) > self._limit:
            raise DataError(
                f"{where} has {len(tokens)} tokens, its environment and tools included; rollout.max_prompt_length is"
                f" {self._limit}"
            )
        return tokens

    def _prompt(self, chat: Chat, tools: Sequence[dict[str, Any]], options: Mapping[str, Any] | None) -> list[int]:
        if self.template is None:
            return list("\n\n".join(message["content"] for message in chat).encode())
        return self.template.tokens(self.template.text(chat, tools, options))

    def suffix(
        self,
        messages: Chat,
        turn: Sequence[int],
        options: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
    ) -> list[int]:
        """The tokens between a turn and the next one. `stop`: strings that ended this turn, in addition to the run's.

        Raises `DataError` for messages that the template refuses."""
        if self.template is None:
            return list(
                "".join(f"\n\n{text}" for text in [*(message["content"] for message in messages), ""]).encode()
            )
        try:
            return self.template.after(messages, turn, options, stop)
        except Exception as error:  # a template may raise anything
            raise DataError(
                f"the chat template refuses the environment's messages ({type(error).__name__}: {error})"
            ) from None

    def read(self, tokens: Sequence[int], before: Sequence[int] = ()) -> Read:
        """A turn's text, and the calls in it. `before`: the tokens before it, of which the last suffice: they may
        have begun its thought. Blocking: a parser of vLLM may take seconds."""
        if self.template is None:
            text = bytes(token for token in tokens if token < 256).decode(errors="replace")
            return Read(self.text(tokens), *self._parse(text, False))
        thinks = begins_thought(self.template.decode(before[-BEGINNING:]))
        calls, malformed, content = self._parse(self.template.decode(tokens), thinks)
        return Read(self.text(tokens), calls, malformed, content, thinks)

    def text(self, tokens: Sequence[int]) -> str:
        """A turn's, without special tokens."""
        return self.template.decode(tokens, special=False) if self.template else " ".join(map(str, tokens))

    def message(self, read: Read) -> dict[str, Any]:
        """A turn as a message, as TRL's reward functions get it: its thoughts and calls apart from its text."""
        thought, said = ("", read.content) if read.malformed else apart(read.content, read.thinks)
        changed = bool(read.calls) or said != read.content
        message: dict[str, Any] = {"role": "assistant", "content": self.spoken(said) if changed else read.text}
        if thought:
            message["reasoning_content"] = thought
        if read.calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in read.calls
            ]
        return message

    def spoken(self, text: str) -> str:
        """The text of a turn without calls and special tokens."""
        return (self.template.without_special(text) if self.template else text).strip()

    def shown(self, tokens: Sequence[int]) -> str:
        """Their text, with special tokens."""
        if self.template is None:
            return bytes(token % 256 for token in tokens).decode(errors="replace")
        return self.template.decode(tokens)

    def problem(self) -> str:
        """Why the policy reads a chat that the template would not write; empty: it reads what the template writes."""
        return self.template.problem() if self.template else ""


def load_dialogue(config: Config, tools: Sequence[dict[str, Any]], limit: int = 0) -> Dialogue:
    """Blocking: reads the model's tokenizer. `limit`: of a prompt's tokens; 0: the run's. Raises `ConfigError`."""
    return Dialogue(
        load_template(config), tools, limit or config.rollout.max_prompt_length, config.environment.parser
    )


def load_template(config: Config) -> ChatTemplate | None:
    """Blocking: reads the model's tokenizer. None: the trace engine has none. Raises `ConfigError`."""
    if config.rollout.engine == "trace":
        return None
    from rhymed.inputs.models import resolve_model
    from rhymed.inputs.render import load_tokenizer
    from rhymed.inputs.stops import stops_of

    folder = resolve_model(config)
    tokenizer = load_tokenizer(config.model, folder)
    stops = stops_of(config, folder, tokenizer).ids
    return ChatTemplate(tokenizer, config.model.chat_template_kwargs, stops, config.rollout.stop)
