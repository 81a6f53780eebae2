"""Messages of a chat in one form, and which of a sample's conversations a chat continues. Pure.

Clients return a message of ours with other keys, an empty text as null, or JSON in another order; that is the same
message. Ids of calls, and spaces around a turn, make no difference either: what the policy wrote is what counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from rhymed.core.errors import CallRefused
from rhymed.inputs.chats import Chat
from rhymed_workers.sessions.calls import BEGIN, END

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _number(text: str) -> float:
    """JavaScript writes 1.0 as 1."""
    number = float(text)
    return int(number) if number.is_integer() else number


_NUMBERS = msgspec.json.Decoder(float_hook=_number)


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str  # JSON, as the policy wrote it

    def canonical(self) -> str:
        """The same for the same arguments."""
        try:
            return msgspec.json.encode(_NUMBERS.decode(self.arguments), order="sorted").decode()
        except (msgspec.MsgspecError, RecursionError):
            return self.arguments


class Message(msgspec.Struct, frozen=True):
    """`content`: text; of a user or a tool it is kept as it is."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""  # of a tool: the id of the call

    def key(self) -> bytes:
        spoken = self.content.strip() if self.role == "assistant" else self.content
        return msgspec.msgpack.encode([self.role, spoken, [[call.name, call.canonical()] for call in self.calls]])


def normal(messages: Any) -> list[Message]:
    """Raises `CallRefused`."""
    if not isinstance(messages, list) or not messages:
        raise CallRefused("messages must be a list of at least one message", param="messages")
    return [message_of(message, f"messages[{place}]") for place, message in enumerate(messages)]


def message_of(message: Any, where: str) -> Message:
    """`where`: its place in the request, for errors. Raises `CallRefused`."""
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise CallRefused(f"{where} needs a role out of {', '.join(ROLES)}", param=where)
    if message.get("function_call"):
        raise CallRefused(f"{where}.function_call is not supported: use tool_calls", param=where)
    calls = tuple(call_of(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(_list(message, where)))
    text = text_of(message.get("content"), where)
    return Message(ROLES[role], text, calls, str(message.get("tool_call_id") or ""))


def _list(message: dict[str, Any], where: str) -> list[Any]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise CallRefused(f"{where}.tool_calls must be a list", param=where)
    return calls


def call_of(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise CallRefused(f"{where} needs a function with a name", param=where)
    arguments = function.get("arguments", "{}")
    try:
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        _object(text)
    except RecursionError:
        raise CallRefused(f"{where}: its arguments are nested too deeply", param=where) from None
    return ToolCall(str(call.get("id") or ""), function["name"], text or "{}")


def text_of(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("text", part.get("refusal")), str) for part in parts):
        raise CallRefused(f"{where}.content: only text can be read by this policy", param=where)
    return "".join(part.get("text", part.get("refusal")) for part in parts)


def readable(messages: Sequence[Message], *, shows_calls: bool) -> Chat:
    """For a chat template. `shows_calls`: it renders calls; otherwise they are words of the policy."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [_readable(message, names, shows_calls) for message in messages]


def _readable(message: Message, names: dict[str, str], shows_calls: bool) -> dict[str, Any]:
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        name = names.get(message.answers)
        return {**chat, **({"name": name} if name else {}), "tool_call_id": message.answers}
    if not message.calls:
        return chat
    bodies = [{"name": call.name, "arguments": _object(call.arguments)} for call in message.calls]
    if shows_calls:
        calls = zip(message.calls, bodies, strict=True)
        return {**chat, "tool_calls": [{"type": "function", "id": call.id, "function": body} for call, body in calls]}
    blocks = [f"{BEGIN}\n{msgspec.json.encode(body).decode()}\n{END}" for body in bodies]
    return {**chat, "content": "\n".join([message.content, *blocks] if message.content else blocks)}


def _object(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.MsgspecError:
        return arguments


class Conversations:
    """Those of one sample: after each turn, the messages so far and the one that was returned."""

    def __init__(self) -> None:
        self._ends: dict[bytes, list[tuple[int, tuple[str, ...]]]] = {}  # digest -> (turn, ids of its calls)

    def add(self, turn: int, tools: bytes, messages: Sequence[Message], reply: Message) -> None:
        """`tools`: those that were offered, as bytes."""
        *_, end = _digests(tools, [*messages, reply])
        self._ends.setdefault(end, []).append((turn, _ids(reply)))

    def continues(self, tools: bytes, messages: Sequence[Message]) -> tuple[int, int] | None:
        """The turn that the messages continue, and how many of them came before; None: they continue none."""
        digests = _digests(tools, messages[:-1])
        for count in range(len(digests), 0, -1):
            if found := self._ends.get(digests[count - 1]):
                ids = _ids(messages[count - 1])
                return next((turn for turn, own in reversed(found) if own == ids), found[-1][0]), count
        return None


def _ids(message: Message) -> tuple[str, ...]:
    return tuple(call.id for call in message.calls)


def _digests(tools: bytes, messages: Sequence[Message]) -> list[bytes]:
    """Of the messages up to each of them."""
    digests, last = [], hashlib.blake2b(tools, digest_size=16).digest()
    for message in messages:
        last = hashlib.blake2b(last + message.key(), digest_size=16).digest()
        digests.append(last)
    return digests
