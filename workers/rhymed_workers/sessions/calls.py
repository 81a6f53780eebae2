"""How a turn's text says which tools to call. Pure, but for parsers of vLLM, which are imported when one is named.

`hermes`, which Qwen 2.5 and 3, Hermes and many others are trained on: JSON objects with `name` and `arguments` in
`<tool_call>` tags. If one call of a turn cannot be read none is made, and the policy is told why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed.errors import ConfigError

BEGIN, END = "<tool_call>", "</tool_call>"
BLOCK = re.compile(rf"{BEGIN}(.*?)(?:{END}|(?={BEGIN})|\Z)", re.DOTALL)


Chat = list[dict[str, Any]]
"""Messages with `role` and `content`."""


class Wanted(msgspec.Struct, frozen=True):
    """A call that the policy asks for."""

    name: str
    arguments: dict[str, Any]


class Read(NamedTuple):
    """A turn as its environment sees it."""

    text: str  # all of it, without special tokens
    calls: Sequence[Wanted] = ()
    malformed: str = ""  # why a call cannot be read; empty: all can


Parse = Callable[[str], tuple[list[Wanted], str]]
"""Text with special tokens -> (calls, why they cannot be read)."""


def spoken(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]], text: str) -> str:
    """A turn's text without its calls, if all can be read. `text`: with special tokens for a parser of vLLM."""
    if name == "hermes":
        return text.partition(BEGIN)[0]
    _, _, content = _extractor(name, tokenizer, tools)(text)
    for token in tokenizer.all_special_tokens:
        content = content.replace(token, "")
    return content


def parser_of(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Parse:
    """Raises `ConfigError` for a parser that is not there."""
    return hermes if name == "hermes" else _of_vllm(name, tokenizer, tools)


def hermes(text: str) -> tuple[list[Wanted], str]:
    calls: list[Wanted] = []
    for found in BLOCK.finditer(text):
        if not found.group(0).endswith(END):
            return [], f"a {BEGIN} has no {END}"
        try:
            calls.append(_call(json.loads(found.group(1))))
        except (ValueError, RecursionError) as error:
            return [], f'a call is not JSON like {{"name": ..., "arguments": {{...}}}}: {error}'
    return calls, ""


def _call(content: Any) -> Wanted:
    """Raises `ValueError`."""
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise ValueError("it has no name")
    arguments = content.get("arguments", content.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are no object")
    try:
        json.dumps([content["name"], arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no character") from None
    return Wanted(content["name"], arguments)


def _of_vllm(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Parse:
    extract = _extractor(name, tokenizer, tools)
    return lambda text: extract(text)[:2]


def _extractor(
    name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]
) -> Callable[[str], tuple[list[Wanted], str, str]]:
    """As `Parse`, and the rest of the text."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager
    except ImportError:
        raise ConfigError(f"environment.parser = {name!r} is one of vLLM's, which is not installed") from None
    try:
        kind = ToolParserManager.get_tool_parser(name)
    except KeyError:
        there = ", ".join(sorted(ToolParserManager.list_registered()))
        raise ConfigError(f"environment.parser: there is no {name!r}; there are hermes and vLLM's: {there}") from None
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=list(tools) or None)

    def extract(text: str) -> tuple[list[Wanted], str, str]:
        found = kind(tokenizer, asked.tools).extract_tool_calls(text, asked)
        rest = found.content or ""
        try:
            return (
                [
                    _call({"name": call.function.name, "arguments": call.function.arguments or "{}"})
                    for call in found.tool_calls
                ],
                "",
                rest,
            )
        except ValueError as error:
            return [], f"a call's arguments are no JSON: {error}", rest

    return extract
