"""Calls of tools: their schemas, their arguments, their results as messages. Runs in a cage."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from rhymed.errors import EnvironmentFailed
from rhymed.messages import Call
from rhymed_workers.environment.protocol import Step, Stepped, Wanted
from rhymed_workers.scorers.explain import defined_at, describe

LONGEST = 1 << 16  # characters of a result: what is longer no context could hold


def schema_of(tool: Callable[..., Any]) -> dict[str, Any]:
    """As in OpenAI's API, from type hints and a docstring in Google's style. Raises `EnvironmentFailed`."""
    if isinstance(given := getattr(tool, "tool_schema", None), dict):
        return given
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: dict[str, Any] = get_json_schema(tool)
    except Exception as error:  # of several kinds
        file, line = defined_at(tool) or ("", 0)
        where = f" ({file}, line {line})" if file else ""
        raise EnvironmentFailed(
            f"tool {getattr(tool, '__name__', tool)}{where} needs type hints and a docstring that describes each"
            f" argument (Args:): {describe(error)}"
        ) from None
    return schema


class Caller:
    """Calls functions, sync or async, on one event loop for all calls."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self.seconds = 0.0  # of the last call

    def run(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        began = time.monotonic()
        try:
            result = function(**arguments)
            return self._await(result) if inspect.isawaitable(result) else result
        finally:
            self.seconds = time.monotonic() - began

    def _await(self, awaitable: Any) -> Any:
        async def outcome() -> Any:
            return await awaitable

        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(outcome())

    def answer(self, request: Step, tools: Mapping[str, Callable[..., Any]]) -> Stepped:
        """The results of the calls in their order. Without any call the policy has spoken its last word."""
        if request.malformed:
            record = Call(name="?", error=request.malformed)
            return Stepped([_message("", _error(request.malformed))], calls=[record])
        if not request.calls:
            return Stepped(done=True)
        answers = [self._call(wanted, tools) for wanted in request.calls]
        return Stepped([_message(call.name, text) for call, text in answers], calls=[call for call, _ in answers])

    def _call(self, wanted: Wanted, tools: Mapping[str, Callable[..., Any]]) -> tuple[Call, str]:
        tool = tools.get(wanted.name)
        if tool is None:
            why = f"there is no tool {wanted.name!r}; there are: {', '.join(tools) or 'none'}"
            return Call(name=wanted.name, error=why), _error(why)
        try:
            inspect.signature(tool).bind(**wanted.arguments)
            text = _text(self.run(tool, wanted.arguments))
        except Exception as error:  # what a tool raises, the policy reads
            why = describe(error)
            return Call(name=wanted.name, seconds=self.seconds, error=why), _error(why)
        return Call(name=wanted.name, seconds=self.seconds), text[:LONGEST]


def _message(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content} if name else {"role": "tool", "content": content}


def _error(why: str) -> str:
    return json.dumps({"error": why}, ensure_ascii=False)


def _text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
