"""Anthropic's Messages API as data: blocks of content become messages of a chat, and a turn becomes blocks. Pure.

There, results of tools are blocks of a user's message; in rhymed they are messages. Blocks of thinking are not part
of the chat: the policy's thought is part of the text of its turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.chat.answers import Written, pieces
from rhymed_workers.sessions.chat.asked import (
    Asked,
    Parameters,
    checked,
    common,
    most_of,
    stops_of,
)
from rhymed_workers.sessions.chat.messages import Message, call_of, message_of, text_of

PARAMETERS = Parameters(
    used=frozenset(
        {
            "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream",
            "chat_template_kwargs",
        }
    ),
    ignored=frozenset(
        {
            "model", "temperature", "top_p", "top_k", "metadata", "thinking", "service_tier", "inference_geo",
            "speed", "cache_control", "betas", "diagnostics", "user_profile_id",
        }
    ),
    nothing={
        "output_config": lambda value: isinstance(value, dict) and not value.get("format"),
        "context_management": lambda value: _clears_thoughts(value),
    },
    why={
        "context_management": "the policy reads the messages as sent: only clear_thinking has no effect",
        "output_config": "tokens are drawn by the run's settings, without a grammar: ask for the format in a message",
        "mcp_servers": "the program runs its tools itself",
        "container": "the program runs its tools itself",
    },
)  # fmt: skip

THOUGHTS = ("thinking", "redacted_thinking")
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def message_asked(body: Any) -> Asked:
    """Raises `CallRefused`."""
    given = checked(body, PARAMETERS)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallRefused("messages must be a list of at least one message", param="messages")
    system = [Message("system", text_of(given["system"], "system"))] if given.get("system") else []
    heard = [each for place, message in enumerate(messages) for each in _heard(message, f"messages[{place}]")]
    if heard[-1].role == "assistant":
        raise CallRefused(
            "the last message is the assistant's: the policy begins its turns itself, so end with the user's",
            param="messages",
        )
    return Asked(
        messages=[*system, *heard],
        most=most_of(given, "max_tokens"),
        stop=stops_of(given, "stop_sequences"),
        **common(given, _tools(given.get("tools") or [])),
    )


def _tools(tools: Any) -> Any:
    """The tools in the form of chat completions."""
    if not isinstance(tools, list):
        return tools
    return [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise CallRefused(f"{where} is {kind!r:.40}: only tools with a schema, which the program runs", param="tools")
    body = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {name: value for name, value in body.items() if value is not None}}


def _heard(message: Any, where: str) -> Iterator[Message]:
    """Messages of a chat from one of Anthropic's: a user's may contain results of tools."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        yield message_of(message, where)
        return
    blocks = [(f"{where}.content[{place}]", block) for place, block in enumerate(content)]
    blocks = [(place, block) for place, block in blocks if _kind(block) not in THOUGHTS]
    role = message.get("role")
    if role == "user" and blocks:
        for results, group in groupby(blocks, lambda one: _kind(one[1]) == "tool_result"):
            if results:
                yield from (_result(block, place) for place, block in group)
            else:
                yield message_of({"role": role, "content": [block for _, block in group]}, where)
        return
    calls = [_call(block, place) for place, block in blocks if _kind(block) == "tool_use"]
    content = [block for _, block in blocks if _kind(block) != "tool_use"]
    yield msgspec.structs.replace(message_of({"role": role, "content": content}, where), calls=tuple(calls))


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _result(block: dict[str, Any], where: str) -> Message:
    return Message("tool", text_of(block.get("content"), where), answers=str(block.get("tool_use_id") or ""))


def _call(block: dict[str, Any], where: str) -> Any:
    function = {"name": block.get("name"), "arguments": block.get("input", {})}
    return call_of({"id": block.get("id"), "function": function}, where)


def message(asked: Asked, written: Written, created: int) -> dict[str, Any]:
    """The answer's object; the API has no `created`."""
    return _head(asked, written) | {
        "content": _blocks(written),
        "stop_reason": _reason(written),
        "stop_sequence": written.stopped or None,
        "usage": _usage(written, len(written.tokens)),
    }


def message_events(asked: Asked, written: Written, created: int) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    yield {"type": "message_start", "message": _head(asked, written)}
    for place, block in enumerate(_blocks(written)):
        if block["type"] == "text":
            empty: dict[str, Any] = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        else:
            empty = {"input": {}}
            whole = msgspec.json.encode(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": whole}]
        yield {"type": "content_block_start", "index": place, "content_block": block | empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    ended = {"stop_reason": _reason(written), "stop_sequence": written.stopped or None}
    yield {"type": "message_delta", "delta": ended, "usage": _usage(written, len(written.tokens))}
    yield {"type": "message_stop"}


def message_refusal(error: CallRefused) -> dict[str, Any]:
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _head(asked: Asked, written: Written) -> dict[str, Any]:
    """The message at its beginning."""
    return {
        "id": f"msg_{written.name}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(written, 0),
    }


def _usage(written: Written, tokens: int) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": written.prompt_length, **cached, "output_tokens": tokens}


def _reason(written: Written) -> str:
    if written.message.calls:
        return "tool_use"
    if written.finish_reason == "length":
        return "max_tokens"
    return "stop_sequence" if written.stopped else "end_turn"


def _blocks(written: Written) -> list[dict[str, Any]]:
    message = written.message
    text = [{"type": "text", "text": message.content}] if message.content or not message.calls else []
    calls = (
        {"type": "tool_use", "id": one.id, "name": one.name, "input": json.loads(one.arguments)}
        for one in message.calls
    )
    return [*text, *calls]


def _clears_thoughts(value: Any) -> bool:
    """Whether the edits only leave out blocks of thinking, of which the chat has none."""
    edits = value.get("edits") or [] if isinstance(value, dict) else [None]
    return isinstance(edits, list) and all(str(_kind(edit)).startswith("clear_thinking") for edit in edits)
