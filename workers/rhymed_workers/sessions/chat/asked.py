"""What a program asks: the parameters of a chat completion. Pure.

The run decides how tokens are drawn, so what a program says about that is ignored where programs commonly say it
(`IGNORED`), and refused in words where its meaning would be lost. Unknown parameters are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rhymed.core.config.generation import LONGEST_STOP
from rhymed.core.config.inputs import RESERVED
from rhymed.core.errors import CallRefused
from rhymed_workers.sessions.chat.messages import Message, normal

MOST_STOPS = 64
NO_LIMIT = 1 << 40  # tokens: no row has as many, and a message can carry it

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
