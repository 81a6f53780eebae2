"""What a turn's text says about calls."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rhymed.core.errors import ConfigError
from rhymed_workers.sessions.calls import Wanted, hermes, parser_of
from tests.inputs.tokenizers import byte_tokenizer


@pytest.fixture
def tokenizer() -> Any:
    return byte_tokenizer(("<eos>", "<tool_call>", "</tool_call>", "<|tool_call|>"))


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
    assert hermes(text)[:2] == (calls, "")


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
    calls, malformed, _ = hermes(text)
    assert calls == []
    assert why in malformed


CALLED, OTHER = call('{"name": "f"}'), call('{"name": "g"}')
F, G = Wanted("f", {}), Wanted("g", {})


@pytest.mark.parametrize(
    ("text", "thinks", "calls", "said"),
    [
        (f"<think>Or {CALLED}? No.</think> It is 5.", False, [], f"<think>Or {CALLED}? No.</think> It is 5."),
        (f"<think>{CALLED}</think>a{OTHER}b", False, [G], f"<think>{CALLED}</think>ab"),
        (f"Perhaps {CALLED} No.</think> It is 5.", True, [], f"Perhaps {CALLED} No.</think> It is 5."),
        (f"Perhaps {CALLED} and so on", True, [], f"Perhaps {CALLED} and so on"),
        (f"a {CALLED} b {OTHER} c", False, [F, G], "a  b  c"),
        (f"{CALLED}<think>And then {OTHER}", False, [F], f"<think>And then {OTHER}"),
        (f"{CALLED}</think>{OTHER}", False, [G], f"{CALLED}</think>"),
        (f"[THINK]{CALLED}[/THINK]{OTHER}", False, [G], f"[THINK]{CALLED}[/THINK]"),
        (call('{"name": "f", "arguments": {"a": "<think>"}}'), False, [Wanted("f", {"a": "<think>"})], ""),
    ],
)
def test_a_call_in_a_thought_is_none_and_the_answer_is_kept(
    text: str, thinks: bool, calls: list[Wanted], said: str
) -> None:
    assert hermes(text, thinks) == (calls, "", said)


def test_reading_is_linear_in_the_length() -> None:
    for piece in ("<think>", "</think>", "<tool_call>", "<tool_call>{", "<think></think>", "</tool_call>"):
        hermes(piece * 100_000)
        hermes(piece * 100_000, True)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="needs vLLM")
def test_parsers_of_vllm_read_calls_too(tokenizer: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    parse = parser_of("pythonic", tokenizer, tools)
    assert parse("[add(a=1, b='x')]", False) == ([Wanted("add", {"a": 1, "b": "x"})], "", "")
    assert parse("<think>[f()]</think>[add(a=1)]", False)[:2] == ([Wanted("add", {"a": 1})], "")
    assert parse("[add(a=1)]", True) == ([], "", "[add(a=1)]")
    with pytest.raises(ConfigError, match=r"there is no 'telepathy'; choose hermes or one of vLLM's: .*pythonic"):
        parser_of("telepathy", tokenizer, tools)
    for useless in ("llama3_json", "openai"):  # needs a token that the model lacks; needs token ids
        with pytest.raises(ConfigError, match=f"environment.parser = '{useless}' cannot be used with this model"):
            parser_of(useless, tokenizer, tools)
    internlm = parser_of("internlm", tokenizer, tools)
    calls, malformed, _ = internlm('<|action_start|><|plugin|>{"name": "add", "para', False)
    assert (calls, malformed[:25]) == ([], "the calls cannot be read:")
    nested = "<tool_call>\n<function=add>\n<parameter=a>\n" + "[" * 3000 + "\n</parameter>\n</function>\n</tool_call>"
    calls, malformed, _ = parser_of("qwen3_coder", tokenizer, tools)(nested, False)
    assert (calls, "RecursionError" in malformed) == ([], True)
