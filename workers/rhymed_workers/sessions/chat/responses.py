"""OpenAI's Responses API as data: a request becomes messages of a chat, and a turn becomes output items. Pure.

An input is a list of items: messages, calls and their outputs. A message of the assistant and the calls after it are
one turn. Items of reasoning are not part of the chat: the policy's thought is part of the text of its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.chat.answers import Written, pieces, token_logprobs
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

PARAMETERS = Parameters(
    used=frozenset(
        {
            "input", "instructions", "previous_response_id", "store", "tools", "tool_choice", "max_output_tokens",
            "stream", "include", "chat_template_kwargs",
        }
    ),
    ignored=frozenset(
        {
            "model", "temperature", "top_p", "user", "metadata", "client_metadata", "service_tier",
            "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
            "parallel_tool_calls", "reasoning", "stream_options", "truncation",
        }
    ),
    nothing=NOTHING | {"text": lambda value: isinstance(value, dict) and _is_plain(value.get("format"))},
    why=WHY
    | {
        "text": "tokens are drawn by the run's settings, without a grammar: ask for the format in a message",
        "conversation": "conversations are not kept: use previous_response_id, or send the items again",
        "background": "send the request without it, and wait for the answer",
        "prompt": "there are no stored prompts: send the items",
    },
)  # fmt: skip

LOGPROBS = "message.output_text.logprobs"
INCLUDED = frozenset({LOGPROBS, "reasoning.encrypted_content"})
"""The second has no effect: there are no items of reasoning."""

Answered = Callable[[str], "tuple[Asked, Message] | None"]
"""Name of an answered call -> its request, and the policy's turn."""


class ResponseAsked(Asked, frozen=True, kw_only=True):
    """`messages` begin with the instructions, if there are any."""

    instructions: str | None = None
    previous: str | None = None
    store: bool = True

    @property
    def heard(self) -> Sequence[Message]:
        """Without the instructions: a later response has its own."""
        return self.messages[1:] if self.instructions is not None else self.messages


def response_asked(body: Any, answered: Answered) -> ResponseAsked:
    """Raises `CallRefused`."""
    given = checked(body, PARAMETERS)
    instructions, previous = given.get("instructions"), given.get("previous_response_id")
    if instructions is not None and not isinstance(instructions, str):
        raise CallRefused("instructions must be a text", param="instructions")
    before = _before(previous, answered) if previous is not None else []
    head = [] if instructions is None else [Message("system", instructions)]
    include = given.get("include") or []
    if not isinstance(include, list) or not all(isinstance(each, str) and each in INCLUDED for each in include):
        raise CallRefused(f"include = {include!r:.80}: there is only {LOGPROBS}", param="include")
    return ResponseAsked(
        messages=[*head, *before, *_heard(given.get("input"))],
        most=most_of(given, "max_output_tokens"),
        logprobs=LOGPROBS in include,
        instructions=instructions,
        previous=previous,
        store=given.get("store") is not False,
        **common(given, _tools(given.get("tools") or [])),
    )


def _before(previous: Any, answered: Answered) -> list[Message]:
    """The messages up to an earlier response, and its turn."""
    found = answered(previous.removeprefix("resp_")) if isinstance(previous, str) else None
    asked, turn = found or (None, None)
    if turn is None or not isinstance(asked, ResponseAsked) or not asked.store:
        raise CallRefused(
            f"previous_response_id = {previous!r:.80}: this sample has no such response, or store was false",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return [*asked.heard, turn]


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


def response(asked: ResponseAsked, written: Written, created: int) -> dict[str, Any]:
    cut = written.finish_reason == "length"
    prompt, tokens = written.prompt_length, len(written.tokens)
    return _head(asked, written, created) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "completed_at": created,
        "output": _items(asked, written),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        },
    }


def response_events(asked: ResponseAsked, written: Written, created: int) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    for number, event in enumerate(_events(asked, written, created)):
        yield event | {"sequence_number": number}


def _events(asked: ResponseAsked, written: Written, created: int) -> Iterator[dict[str, Any]]:
    whole, begun = response(asked, written, created), _head(asked, written, created)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(whole["output"]):
        parts = _message_events(item) if item["type"] == "message" else _call_events(item)
        for event in parts:
            yield event | {"output_index": place}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _message_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    where = {"item_id": item["id"], "content_index": 0}
    empty = part | {"text": "", "logprobs": []}
    yield {"type": "response.output_item.added", "item": item | {"status": "in_progress", "content": []}}
    yield {"type": "response.content_part.added", **where, "part": empty}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": part["logprobs"]}
    yield {"type": "response.content_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "item": item}


def _call_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    arguments, where = item["arguments"], {"item_id": item["id"]}
    yield {"type": "response.output_item.added", "item": item | {"status": "in_progress", "arguments": ""}}
    yield {"type": "response.function_call_arguments.delta", **where, "delta": arguments}
    yield {
        "type": "response.function_call_arguments.done",
        **where,
        "name": item["name"],
        "arguments": arguments,
    }
    yield {"type": "response.output_item.done", "item": item}


def _head(asked: ResponseAsked, written: Written, created: int) -> dict[str, Any]:
    """The response at its beginning."""
    return {
        "id": f"resp_{written.name}",
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.most,
        "metadata": {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": asked.previous,
        "reasoning": {"effort": None, "summary": None},
        "store": asked.store,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none" if asked.tools and not asked.parse else "auto",
        "tools": [{"type": "function", **tool["function"]} for tool in asked.tools],
        "truncation": "disabled",
        "usage": None,
    }


def _items(asked: ResponseAsked, written: Written) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if written.finish_reason == "length" else "completed"
    if written.message.content or not written.message.calls:
        logprobs = token_logprobs(written) if asked.logprobs else []
        part = {"type": "output_text", "text": written.message.content, "annotations": [], "logprobs": logprobs}
        message = {"id": f"msg_{written.name}", "type": "message", "role": "assistant"}
        items.append(message | {"status": status, "content": [part]})
    for place, call in enumerate(written.message.calls):
        one = {"id": f"fc_{written.name}_{place}", "type": "function_call", "status": "completed"}
        items.append(one | {"call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def _is_plain(format: Any) -> bool:
    return format is None or (isinstance(format, dict) and format.get("type") == "text")
