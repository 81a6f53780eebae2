"""What a turn's text says about calls."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rhymed.errors import ConfigError
from rhymed_workers.sessions.calls import Wanted, hermes, parser_of


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call at all", []),
        (call('{"name": "add", "arguments": {"a": 1}}'), [Wanted("add", {"a": 1})]),
        (
            "I try " + call('{"name": "f"}') + " and " + call('{"name": "g", "parameters": {"x": "y"}}'),
            [Wanted("f", {}), Wanted("g", {"x": "y"})],
        ),
        (call('{"name": "f", "arguments": "{\\"a\\": [1, 2]}"}'), [Wanted("f", {"a": [1, 2]})]),
        (call('{"name": "f", "arguments": {"a": "\\ud83d\\ude00"}}'), [Wanted("f", {"a": "\U0001f600"})]),
    ],
)
def test_calls_are_read(text: str, calls: list[Wanted]) -> None:
    assert hermes(text) == (calls, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "f"}', "has no </tool_call>"),
        (call('{"name": "f"'), "not JSON"),
        (call('["f"]'), "it has no name"),
        (call('{"arguments": {}}'), "it has no name"),
        (call('{"name": "f", "arguments": [1]}'), "its arguments are no object"),
        (call('{"name": "f"}') + call("{}"), "it has no name"),
        (call('{"name": "f", "arguments": ' + "[" * 100_000), "not JSON"),
        (call('{"name": "\\ud83d"}'), "half of a surrogate pair"),
        (call('{"name": "f", "arguments": {"a": ["\\ude00"]}}'), "half of a surrogate pair"),
        ('<tool_call>{"name": "f"}' + call('{"name": "g"}'), "has no </tool_call>"),
    ],
)
def test_none_is_made_if_one_cannot_be_read(text: str, why: str) -> None:
    calls, malformed = hermes(text)
    assert calls == []
    assert why in malformed


class NoTokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {"[TOOL_CALLS]": 1, "<tool_call>": 2, "</tool_call>": 3}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [2]

    def decode(self, tokens: Any, **_: Any) -> str:
        return "<tool_call>"


@pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="needs vLLM")
def test_parsers_of_vllm_read_calls_too() -> None:
    parse = parser_of("pythonic", NoTokenizer(), [])
    assert parse("[add(a=1, b='x')]") == ([Wanted("add", {"a": 1, "b": "x"})], "")
    with pytest.raises(ConfigError, match=r"there is no 'telepathy'; there are hermes and vLLM's: .*pythonic"):
        parser_of("telepathy", NoTokenizer(), [])
