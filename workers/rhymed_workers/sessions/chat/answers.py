"""A turn of the policy as OpenAI's clients read it. Pure.

What is an answer's id is made of the turn's key, so a turn that is answered again has the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.chat.asked import Asked
from rhymed_workers.sessions.chat.messages import Message

PIECE = 256  # characters of a chunk of a stream: the turn is whole when it begins


class Written(NamedTuple):
    """A turn, and what it says."""

    name: str  # random letters, the same when it is answered again
    prompt: Sequence[int]  # empty unless token ids were asked for
    prompt_length: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str  # stop, length
    message: Message
    pieces: Sequence[str] = ()  # the text of each token, if log-probs were asked for

    @property
    def reason(self) -> str:
        return "tool_calls" if self.message.calls else self.finish_reason


def completion(asked: Asked, written: Written, created: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(written), "refusal": None}
    if written.message.calls:
        message["tool_calls"] = _calls(written.message)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": written.reason}
    choice["logprobs"] = _logprobs(written) if asked.logprobs else None
    body = _head(asked, written, created, "chat.completion") | {"choices": [choice], "usage": usage(written)}
    if asked.token_ids:
        body["prompt_token_ids"] = list(written.prompt)  # as vLLM has them, and as NeMo-Gym has them
        choice["token_ids"] = list(written.tokens)
        message["prompt_token_ids"] = body["prompt_token_ids"]
        message["generation_token_ids"] = choice["token_ids"]
        message["generation_log_probs"] = list(written.logprobs)
    return body


def chunks(asked: Asked, written: Written, created: int) -> Iterator[dict[str, Any] | None]:
    """The bytes of an event of a stream; None: of its end."""
    head = _head(asked, written, created, "chat.completion.chunk")
    if asked.usage:
        head["usage"] = None
    first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    opening = head | {"choices": [_delta(first)]}
    if asked.token_ids:
        opening["prompt_token_ids"] = list(written.prompt)
    yield opening
    text = written.message.content
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        yield head | {"choices": [_delta({"content": piece})]}
    for place, call in enumerate(_calls(written.message)):
        yield head | {"choices": [_delta({"tool_calls": [{"index": place, **call}]})]}
    last = _delta({}) | {"finish_reason": written.reason}
    if asked.logprobs:
        last["logprobs"] = _logprobs(written)
    if asked.token_ids:
        last["token_ids"] = list(written.tokens)
    yield head | {"choices": [last]}
    if asked.usage:
        yield head | {"choices": [], "usage": usage(written)}
    yield None


def usage(written: Written) -> dict[str, int]:
    prompt, tokens = written.prompt_length, len(written.tokens)
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def refusal(error: CallRefused) -> dict[str, Any]:
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    kind = "server_error" if error.status >= 500 else kind
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def models(name: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rhymed"}]}


def event(body: dict[str, Any] | None) -> bytes:
    """The bytes of an event of a stream; None: of its end."""
    return b"data: " + (b"[DONE]" if body is None else msgspec.json.encode(body)) + b"\n\n"


def _head(asked: Asked, written: Written, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{written.name}", "object": kind, "created": created, "model": asked.model}


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}


def _content(written: Written) -> str | None:
    return written.message.content or (None if written.message.calls else "")


def _calls(message: Message) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]


def _logprobs(written: Written) -> dict[str, Any]:
    content = [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in zip(written.pieces, written.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
