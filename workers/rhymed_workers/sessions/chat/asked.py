"""What a program asks: the parameters of a chat completion, or of vLLM's call with token ids. Pure.

The run decides how tokens are drawn, so what a program says about that is ignored where programs commonly say it
(`IGNORED`), and refused in words where its meaning would be lost. Unknown parameters are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rhymed.errors import CallRefused
from rhymed_workers.sessions.chat.messages import Message, normal

IGNORED = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "user", "metadata", "store", "service_tier",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity",
        "parallel_tool_calls", "include_reasoning", "skip_special_tokens", "spaces_between_special_tokens",
        "include_stop_str_in_output", "add_generation_prompt", "priority", "request_id", "cache_salt",
        "stream_options", "model", "detokenize", "output_mode", "truncate_prompt_tokens",
    }
)  # fmt: skip
"""They decide how tokens are drawn, as the run does, or change nothing here."""

USED = frozenset(
    {
        "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream", "logprobs",
        "return_token_ids", "token_ids", "sampling_params",
    }
)  # fmt: skip

NOTHING: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "top_logprobs": lambda value: value == 0,
    "prompt_logprobs": lambda value: value == 0,
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "min_tokens": lambda value: value == 0,
    "length_penalty": lambda value: value == 1,
    "echo": lambda value: value is False,
    "ignore_eos": lambda value: value is False,
    "add_special_tokens": lambda value: value is False,
    "modalities": lambda value: value == ["text"],
}
"""Values with which a parameter changes nothing; others are refused."""

WHY = {
    "n": "ask once for each completion",
    "top_logprobs": "log-probs are known for the sampled tokens only: leave it out, or set it to 0",
    "prompt_logprobs": "log-probs are known for the sampled tokens only",
    "response_format": "tokens are drawn as the run says, without a grammar: ask for the format in a message",
    "tool_choice": "tokens are drawn as the run says: only 'auto' and 'none' can be kept",
    "stop": "a turn ends where the policy ends it: cut the text in your program",
    "functions": "use tools",
    "function_call": "use tool_choice",
}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` or `tokens`."""

    messages: list[Message] = []
    tokens: list[int] | None = None
    tools: list[dict[str, Any]] = []
    parse: bool = False  # calls in the answer are read
    most: int | None = None  # tokens
    stream: bool = False
    usage: bool = False  # a stream ends with it
    logprobs: bool = False
    token_ids: bool = False
    model: str = ""

    @property
    def tools_key(self) -> bytes:
        return msgspec.json.encode(self.tools, order="sorted") if self.tools else b""


def chat_asked(body: Any) -> Asked:
    """Raises `CallRefused`."""
    given = _checked(body)
    tools = given.get("tools") or []
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise CallRefused("tools must be a list of functions with names", param="tools")
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise CallRefused(f"tool_choice = {choice!r:.80}: {WHY['tool_choice']}", param="tool_choice")
    options = given.get("stream_options")
    return Asked(
        messages=normal(given.get("messages")),
        tools=tools,
        parse=bool(tools) and choice == "auto",
        most=_most(given, "max_completion_tokens", "max_tokens"),
        stream=given.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        logprobs=given.get("logprobs") is True,
        token_ids=given.get("return_token_ids") is True,
        model=str(given.get("model") or ""),
    )


def tokens_asked(body: Any) -> Asked:
    """vLLM's `/inference/v1/generate`. Raises `CallRefused`."""
    given = _checked(body)
    tokens, sampling = given.get("token_ids"), _checked(given.get("sampling_params") or {})
    if not isinstance(tokens, list) or not tokens or not all(_is_token(token) for token in tokens):
        raise CallRefused("token_ids must be a list of at least one token id", param="token_ids")
    if given.get("stream") is True:
        raise CallRefused("token ids are not streamed: leave stream out", param="stream")
    if given.get("output_mode", "tokens") != "tokens":
        raise CallRefused("output_mode: only 'tokens' is answered", param="output_mode")
    wanted = sampling.get("logprobs")
    if wanted not in (None, False, 0, 1, True):
        raise CallRefused(f"sampling_params.logprobs = {wanted!r:.40}: {WHY['top_logprobs']}", param="logprobs")
    return Asked(
        tokens=tokens,
        most=_most(sampling, "max_tokens"),
        logprobs=wanted is not None and wanted is not False,
        token_ids=given.get("return_token_ids") is True,
        model=str(given.get("model") or ""),
    )


def _checked(body: Any) -> dict[str, Any]:
    """Without what is null. Raises `CallRefused` for what cannot be done."""
    if not isinstance(body, dict):
        raise CallRefused("the request's body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in USED or name in IGNORED or not _changes(name, value):
            continue
        why = WHY.get(name, "this endpoint does not have it" if name not in NOTHING else "the run decides it")
        raise CallRefused(f"{name} = {value!r:.80}: {why}", code="unsupported_parameter", param=name)
    return given


def _changes(name: str, value: Any) -> bool:
    """Whether a value asks for something."""
    return not NOTHING[name](value) if name in NOTHING else value not in ([], {}, "", False)


def _most(given: dict[str, Any], *names: str) -> int | None:
    for name in names:
        if name in given:
            if not isinstance(given[name], int) or isinstance(given[name], bool) or given[name] < 1:
                raise CallRefused(f"{name} = {given[name]!r:.40}: a number of at least 1 expected", param=name)
            return int(given[name])
    return None


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _is_token(token: Any) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 1 << 31
