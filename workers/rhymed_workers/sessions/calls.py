"""Reads a turn's calls of tools from its text. Pure, except for parsers of vLLM, which run in a process (`parsing`).

`hermes`, which Qwen 2.5 and 3, Hermes and many others are trained on: JSON objects with `name` and `arguments` in
`<tool_call>` tags. If one call of a turn cannot be read, none is executed, and the policy gets the reason. Text in a
thought has no calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed_workers.sessions.parsing import Unreadable, parsers_for

BEGIN, END = "<tool_call>", "</tool_call>"
BLOCK = re.compile(rf"{BEGIN}(.*?)(?:{END}|(?={BEGIN})|\Z)", re.DOTALL)

THOUGHTS = {
    "<think>": "</think>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
"""Tags of published models around a thought."""

ENDS = re.compile("|".join(map(re.escape, THOUGHTS.values())))
EDGES = re.compile("|".join(map(re.escape, [*THOUGHTS, *THOUGHTS.values()])))
TAGS = re.compile("|".join(map(re.escape, [BEGIN, *THOUGHTS, *THOUGHTS.values()])))


class Wanted(msgspec.Struct, frozen=True):
    """A call that the policy asks for."""

    name: str
    arguments: dict[str, Any]


class Read(NamedTuple):
    """A turn as its environment sees it."""

    text: str  # all of it, without special tokens
    calls: Sequence[Wanted] = ()
    malformed: str = ""  # why a call cannot be read; empty: all can
    content: str = ""  # with special tokens, without the calls
    thinks: bool = False  # its prompt has begun a thought


Parse = Callable[[str, bool], tuple[list[Wanted], str, str]]
"""(text with special tokens, whether it begins in a thought) -> (calls, why they cannot be read, the text without
them)."""


def begins_thought(prompt: str) -> bool:
    """`prompt`: its end, with what the template begins the policy's turn with."""
    return prompt.rstrip().endswith(tuple(THOUGHTS))


def parser_of(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Parse:
    """Blocking where it is one of vLLM's. Raises `ConfigError` for a parser that does not exist, or cannot read
    the model's output."""
    return hermes if name == "hermes" else _of_vllm(name, tokenizer, tools)


def hermes(text: str, thinks: bool = False) -> tuple[list[Wanted], str, str]:
    blocks, _ = _divided(text, thinks, BLOCK)
    calls: list[Wanted] = []
    for found in blocks:
        if not found.group(0).endswith(END):
            return [], f"a {BEGIN} has no {END}", text
        try:
            calls.append(_call(json.loads(found.group(1))))
        except (ValueError, RecursionError) as error:
            return [], f'a call is not JSON like {{"name": ..., "arguments": {{...}}}}: {error}', text
    return calls, "", _without(text, [found.span() for found in blocks])


def _divided(
    text: str, thinks: bool, block: re.Pattern[str] | None
) -> tuple[list[re.Match[str]], list[tuple[int, int]]]:
    """Blocks outside of thoughts, and the thoughts' places. A thought without an end continues to the end of the
    text; one that has no beginning began with the text. Linear in the text's length."""
    blocks: list[re.Match[str]] = []
    spans: list[tuple[int, int]] = []
    place = 0
    if thinks:
        ended = ENDS.search(text)
        place = ended.end() if ended else len(text)
        spans = [(0, place)]
    while found := TAGS.search(text, place):
        if found[0] == BEGIN:
            if (begun := block.match(text, found.start()) if block else None) is not None:
                blocks.append(begun)
            place = begun.end() if begun else found.end()
        elif found[0] in THOUGHTS:
            end = text.find(THOUGHTS[found[0]], found.end())
            place = len(text) if end < 0 else end + len(THOUGHTS[found[0]])
            spans.append((found.start(), place))
        else:
            place = found.end()
            blocks, spans = [], [(0, place)]
    return blocks, spans


def apart(content: str, thinks: bool) -> tuple[str, str]:
    """A turn's thoughts, without their tags, and the rest of its text."""
    _, spans = _divided(content, thinks, BLOCK)
    thoughts = (EDGES.sub("", content[start:end]).strip() for start, end in spans)
    return "\n".join(filter(None, thoughts)), _without(content, spans)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


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
    parsers = parsers_for(tokenizer)
    parsers.check(name, tools)

    def parse(text: str, thinks: bool = False) -> tuple[list[Wanted], str, str]:
        _, spans = _divided(text, thinks, None)
        try:
            found, rest = parsers.read(name, tools, _without(text, spans))
            calls = [_call({"name": called, "arguments": arguments or "{}"}) for called, arguments in found]
        except (Unreadable, ValueError, RecursionError) as error:
            return [], f"the calls cannot be read: {error}", text
        return calls, "", "".join(text[start:end] for start, end in spans) + rest if calls else text

    return parse
