"""Chat completions, OpenAI's API: what a program asks, and a turn of the policy as its clients read it. Pure.

The run decides how tokens are drawn, so what a program says about that is ignored where programs commonly say it
(`IGNORED`), and refused in words where its meaning would be lost. Unknown parameters are refused.

`chat_asked` reads a request; `completion` and `chunks` answer it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed.core.config.generation import LONGEST_STOP
from rhymed.core.config.inputs import RESERVED
from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.messages import Message, normal

MOST_STOPS = 64
NO_LIMIT = 1 << 40  # tokens: no row has as many, and a message can carry it
PIECE = 256  # characters of a chunk of a stream: the turn is whole when it begins

IGNORED = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "user", "metadata", "store", "service_tier",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity",
        "parallel_tool_calls", "include_reasoning", "skip_special_tokens", "spaces_between_special_tokens",
        "add_generation_prompt", "priority", "request_id", "cache_salt",
        "stream_options", "model", "truncate_prompt_tokens",
    }
)  # fmt: skip
"""They decide how tokens are drawn, as the run does, or change nothing here."""

USED = frozenset(
    {
        "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream", "logprobs",
        "return_token_ids", "stop", "include_stop_str_in_output",
        "chat_template_kwargs",
    }
)  # fmt: skip

NOTHING: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "top_logprobs": 0,
    "prompt_logprobs": 0,
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
    "length_penalty": 1,
    "echo": False,
    "ignore_eos": False,
    "add_special_tokens": False,
    "modalities": ["text"],
}
"""Values with which a parameter changes nothing; others are refused."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[Message]
    tools: list[dict[str, Any]] = []
    parse: bool = False  # calls in the answer are read
    most: int | None = None  # tokens
    stop: list[str] = []  # strings that end the answer
    includes_stop: bool = False  # the answer's text has the string that ended it, as its tokens do
    options: dict[str, Any] = {}  # of the chat template
    stream: bool = False
    usage: bool = False  # a stream ends with it
    logprobs: bool = False
    token_ids: bool = False
    model: str = ""

    @property
    def prompt_key(self) -> bytes:
        """A digest of the parts of a prompt other than messages."""
        made = [self.tools, self.options] if self.options else self.tools
        return msgspec.json.encode(made, order="sorted") if made else b""


def chat_asked(body: Any) -> Asked:
    """Raises `CallRefused` for what cannot be done."""
    given = _checked(body)
    options, tools = given.get("stream_options"), given.get("tools") or []
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise CallRefused("tools must be a list of functions with names", param="tools")
    return Asked(
        messages=normal(given.get("messages")),
        tools=tools,
        parse=_choice(given) == "auto" and bool(tools),
        most=_most(given),
        stop=_stops(given),
        includes_stop=given.get("include_stop_str_in_output") is True,
        options=_template_options(given),
        stream=given.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        logprobs=given.get("logprobs") is True,
        token_ids=given.get("return_token_ids") is True,
        model=str(given.get("model") or ""),
    )


def _checked(body: Any) -> dict[str, Any]:
    """Without what is null. Raises `CallRefused` for what cannot be done."""
    if not isinstance(body, dict):
        raise CallRefused("the request's body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        harmless = [NOTHING[name]] if name in NOTHING else [[], {}, "", False]
        if name not in USED | IGNORED and value not in harmless:
            why = "the run decides how tokens are drawn" if name in NOTHING else "this endpoint does not support it"
            raise CallRefused(f"{name} = {value!r:.80}: {why}", code="unsupported_parameter", param=name)
    return given


def _choice(given: dict[str, Any]) -> str:
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise CallRefused(f"tool_choice = {choice!r:.80}: only 'auto' and 'none' can be kept", param="tool_choice")
    return str(choice)


def _most(given: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if name in given:
            if not isinstance(given[name], int) or isinstance(given[name], bool) or given[name] < 1:
                raise CallRefused(f"{name} = {given[name]!r:.40}: a number of at least 1 expected", param=name)
            return min(int(given[name]), NO_LIMIT)
    return None


def _stops(given: dict[str, Any]) -> list[str]:
    asked = given.get("stop") or []
    strings = [asked] if isinstance(asked, str) else asked
    if not isinstance(strings, list) or not all(isinstance(each, str) and each for each in strings):
        raise CallRefused(f"stop = {asked!r:.80}: a string or a list of strings expected", param="stop")
    if len(strings) > MOST_STOPS or any(len(each) > LONGEST_STOP for each in strings):
        raise CallRefused(f"stop: at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters", param="stop")
    return strings


def _template_options(given: dict[str, Any]) -> dict[str, Any]:
    options = given.get("chat_template_kwargs", {})
    if not isinstance(options, dict) or RESERVED & options.keys():
        reserved = ", ".join(sorted(RESERVED))
        raise CallRefused(f"chat_template_kwargs must be an object without {reserved}", param="chat_template_kwargs")
    return options


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


# The answer. Its id is made of the turn's key, so a turn that is answered again has the same.


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
