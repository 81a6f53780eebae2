"""OpenAI's Responses API as data: a request becomes messages of a chat, and a turn becomes output items. Pure.

An input is a list of items: messages, calls and their outputs. A message of the assistant and the calls after it are
one turn. Items of reasoning are not part of the chat: the policy's thought is part of the text of its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.chat.answers import Written, pieces
from rhymed_workers.sessions.chat.asked import (
    NOTHING,
    WHY,
    Asked,
    Parameters,
    checked,
    common,
    most_of,
)
from rhymed_workers.sessions.chat.messages import Message, call_of, message_of, text_of

ENCRYPTED = "reasoning.encrypted_content"
"""What clients commonly ask to be included. There are no items of reasoning."""

PARAMETERS = Parameters(
    used=frozenset(
        {
            "input", "instructions", "tools", "tool_choice", "max_output_tokens", "stream", "chat_template_kwargs",
        }
    ),
    ignored=frozenset(
        {
            "model", "temperature", "top_p", "user", "metadata", "client_metadata", "service_tier", "store",
            "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
            "parallel_tool_calls", "reasoning", "stream_options", "truncation",
        }
    ),
    nothing=NOTHING
    | {
        "text": lambda value: isinstance(value, dict) and _is_plain(value.get("format")),
        "include": lambda value: value in ([], [ENCRYPTED]),
    },
    why=WHY
    | {
        "text": "tokens are drawn by the run's settings, without a grammar: ask for the format in a message",
        "previous_response_id": "responses are not kept: send the items again",
        "conversation": "conversations are not kept: send the items again",
        "background": "send the request without it, and wait for the answer",
        "prompt": "there are no stored prompts: send the items",
        "include": "only chat completions have log-probs",
    },
)  # fmt: skip


def response_asked(body: Any) -> Asked:
    """Raises `CallRefused`."""
    given = checked(body, PARAMETERS)
    instructions = given.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise CallRefused("instructions must be a text", param="instructions")
    head = [] if instructions is None else [Message("system", instructions)]
    return Asked(
        messages=[*head, *_heard(given.get("input"))],
        most=most_of(given, "max_output_tokens"),
        **common(given, _tools(given.get("tools") or [])),
    )


def _tools(tools: Any) -> Any:
    """The tools in the form of chat completions."""
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, dict) else tool
            raise CallRefused(
                f"tools[{place}] is {kind!r:.40}: only functions can be called, which the program runs", param="tools"
            )
    if not isinstance(tools, list):
        return tools
    bodies = ({name: value for name, value in tool.items() if name != "type" and value is not None} for tool in tools)
    return [{"type": "function", "function": body} for body in bodies]


def _heard(given: Any) -> list[Message]:
    """The messages of an input."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise CallRefused("input must be a text or a list of items", param="input")
    messages: list[Message] = []
    follows = False  # a call now is of the same turn as the item before
    for place, item in enumerate(items):
        where = f"input[{place}]"
        kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
        if kind == "reasoning":
            continue
        if kind == "function_call":
            call = call_of({"id": item.get("call_id"), "function": item}, where)
            last = messages.pop() if follows else Message("assistant", "")
            messages.append(msgspec.structs.replace(last, calls=(*last.calls, call)))
        elif kind == "function_call_output":
            answers = str(item.get("call_id") or "")
            messages.append(Message("tool", text_of(item.get("output"), f"{where}.output"), answers=answers))
        elif kind == "message":
            messages.append(message_of({"role": item.get("role"), "content": item.get("content")}, where))
        else:
            raise CallRefused(
                f"{where} is {kind!r:.40}: there are message, function_call, function_call_output and reasoning",
                param=where,
            )
        follows = messages[-1].role == "assistant"
    if not messages:
        raise CallRefused("input must have at least one message or output of a call", param="input")
    return messages


def response(asked: Asked, written: Written, created: int) -> dict[str, Any]:
    cut = written.finish_reason == "length"
    prompt, tokens = written.prompt_length, len(written.tokens)
    return {
        "id": f"resp_{written.name}",
        "object": "response",
        "created_at": created,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": asked.model,
        "output": _items(written),
        "parallel_tool_calls": True,
        "tool_choice": "none" if asked.tools and not asked.parse else "auto",
        "tools": [{"type": "function", **tool["function"]} for tool in asked.tools],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        },
    }


def response_events(asked: Asked, written: Written, created: int) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    for number, event in enumerate(_events(response(asked, written, created))):
        yield event | {"sequence_number": number}


def _events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun: dict[str, Any] = {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": whole | begun}
    for place, item in enumerate(whole["output"]):
        says, at = item["type"] == "message", {"output_index": place}
        empty: dict[str, Any] = {"content": []} if says else {"arguments": ""}
        added = item | empty | {"status": "in_progress"}
        yield {"type": "response.output_item.added", **at, "item": added}
        for event in _message_events(item) if says else _call_events(item):
            yield event | at | {"item_id": item["id"]}
        yield {"type": "response.output_item.done", **at, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _message_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    where = {"content_index": 0}
    yield {"type": "response.content_part.added", **where, "part": part | {"text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **where, "part": part}


def _call_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name, arguments = item["name"], item["arguments"]
    yield {"type": "response.function_call_arguments.delta", "delta": arguments}
    yield {"type": "response.function_call_arguments.done", "name": name, "arguments": arguments}


def _items(written: Written) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if written.finish_reason == "length" else "completed"
    if written.message.content or not written.message.calls:
        part = {"type": "output_text", "text": written.message.content, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{written.name}", "type": "message", "role": "assistant"}
        items.append(message | {"status": status, "content": [part]})
    for place, call in enumerate(written.message.calls):
        one = {"id": f"fc_{written.name}_{place}", "type": "function_call", "status": "completed"}
        items.append(one | {"call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def _is_plain(format: Any) -> bool:
    return format is None or (isinstance(format, dict) and format.get("type") == "text")
