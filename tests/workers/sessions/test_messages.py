"""Which messages are the same, whatever form a client gives them."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.completions import chat_asked
from rhymed_workers.sessions.messages import Conversations, Message, ToolCall, normal, readable

USER = {"role": "user", "content": "?"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": 2}'}}
REPLY = Message("assistant", "Well.", (ToolCall("a", "f", '{"x": 1, "y": 2}'),))
RESULT = {"role": "tool", "tool_call_id": "a", "content": "3"}


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Well.", "tool_calls": [CALL], **fields}


@pytest.mark.parametrize(
    "returned",
    [
        said(),
        said(content=" Well.\n", refusal=None, audio=None, annotations=[]),
        said(content=[{"type": "text", "text": "We"}, {"type": "text", "text": "ll."}]),
        said(tool_calls=[{"id": "other", "function": {"name": "f", "arguments": {"y": 2, "x": 1}}}]),
        said(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": {"y": 2.0, "x": 1}}}]),
    ],
)
def test_a_message_in_another_form_is_the_same(returned: dict[str, Any]) -> None:
    conversations = Conversations()
    conversations.add(4, b"tools", normal([USER]), REPLY)
    assert conversations.continues(b"tools", normal([USER, returned, RESULT])) == (4, 2)


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, said()],
        [USER, said(content="Well!"), RESULT],
        [USER, said(tool_calls=[]), RESULT],
        [{"role": "system", "content": "!"}, USER, said(), RESULT],
    ],
)
def test_another_message_is_another_conversation(messages: list[dict[str, Any]]) -> None:
    conversations = Conversations()
    conversations.add(4, b"tools", normal([USER]), REPLY)
    assert conversations.continues(b"tools", normal(messages)) is None
    assert conversations.continues(b"", normal([USER, said(), RESULT])) is None, "other tools are another prompt"


def test_of_turns_with_the_same_words_the_ids_of_calls_tell_which() -> None:
    conversations = Conversations()
    conversations.add(0, b"", normal([USER]), REPLY)
    conversations.add(1, b"", normal([USER]), Message("assistant", "Well.", (ToolCall("b", "f", '{"x":1,"y":2}'),)))
    assert conversations.continues(b"", normal([USER, said(), RESULT])) == (0, 2)
    strange = said(tool_calls=[{**CALL, "id": "z"}])
    assert conversations.continues(b"", normal([USER, strange, RESULT])) == (1, 2), "the latest"


def test_the_latest_turn_of_a_conversation_is_continued() -> None:
    conversations = Conversations()
    first = [USER, said(), RESULT]
    conversations.add(0, b"", normal([USER]), REPLY)
    conversations.add(1, b"", normal(first), Message("assistant", "Done."))
    done = {"role": "assistant", "content": "Done."}
    assert conversations.continues(b"", normal([*first, done, USER])) == (1, 4)
    assert conversations.continues(b"", normal([*first, USER])) == (0, 2)


def test_calls_are_words_for_a_template_that_does_not_know_them() -> None:
    chat = readable(normal([USER, said(), RESULT]), shows_calls=False)
    assert chat[1]["content"].startswith('Well.\n<tool_call>\n{"name":"f"')
    assert chat[2] == {"role": "tool", "content": "3", "name": "f", "tool_call_id": "a"}
    shown = readable(normal([said()]), shows_calls=True)[0]
    assert shown["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1, "y": 2}}


def test_what_ends_an_answer_and_what_the_template_is_given_can_be_asked() -> None:
    asked = chat_asked({"messages": [USER], "stop": "x", "chat_template_kwargs": {"enable_thinking": False}})
    assert (asked.stop, asked.options, asked.includes_stop) == (["x"], {"enable_thinking": False}, False)
    assert asked.prompt_key != chat_asked({"messages": [USER]}).prompt_key
    assert chat_asked({"messages": [USER], "stop": ["x", "y"]}).stop == ["x", "y"]


def test_what_decides_how_tokens_are_drawn_is_ignored_or_refused() -> None:
    asked = chat_asked({"messages": [USER], "temperature": 0, "top_p": 0.5, "n": 1, "stop": [], "logit_bias": {}})
    assert (asked.most, asked.parse) == (None, False)
    wrongs: list[dict[str, Any]] = [
        {"n": 2},
        {"stop": [1]},
        {"stop": [""]},
        {"chat_template_kwargs": {"tools": []}},
        {"logit_bias": {"1": 2}},
        {"max_tokens": 0},
        {"unheard_of": True},
    ]
    for wrong in wrongs:
        with pytest.raises(CallRefused):
            chat_asked({"messages": [USER], **wrong})
