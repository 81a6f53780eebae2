"""Functions as tools, and classes whose public methods are tools: TRL's `tools` and `environment_factory`, unchanged.

An environment is made for each sample, `reset` gets the sample's row, and what it returns continues the last message.
Of a dict of classes, the row's column `environment` names the sample's.

`Caller` makes the calls of a turn.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed.core.errors import EnvironmentFailed, RowUnsuitable
from rhymed.core.messages import Call
from rhymed.inputs.chats import Chat
from rhymed.inputs.rows import without_nulls
from rhymed_workers.environment.hosting.runner import Exited, Runner, is_async
from rhymed_workers.environment.hosting.tool import (
    Tool,
    encodable,
    explained,
    may_repeat,
    number_of,
    state_of,
    text_of,
    tool_of,
    trl_error,
    unreadable,
)
from rhymed_workers.environment.protocol import Kind, Open, Step, Stepped
from rhymed_workers.sandbox.usercode import defined_at, describe
from rhymed_workers.sessions.calls import Wanted

WHICH = "environment"
"""The row's column that names its environment, if there are several."""


class ToolsHost:
    """Functions without state."""

    kind: Kind = "tools"

    def __init__(self, tools: Sequence[Tool], runner: Runner, setting: str) -> None:
        self.tools = [tool.schema for tool in tools]
        self.idempotent = [tool.name for tool in tools if tool.idempotent]
        self.awaits = any(is_async(tool.function) for tool in tools)
        self._tools = {tool.name: tool for tool in tools}
        self._caller, self._setting = Caller(runner), setting

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        return request.chat, list(self._tools)

    async def step(self, request: Step) -> Stepped:
        return await self._caller.answer(request, self._tools)

    async def close(self, name: str) -> None:
        """Nothing is open."""

    def explain(self, error: BaseException) -> str:
        return explained(self._setting, error)


class MethodsHost:
    """`factories`: by the name in a row; None: the only one. `tools`: functions that every sample has, too."""

    kind: Kind = "methods"

    def __init__(
        self,
        factories: Mapping[str | None, Callable[..., Any]],
        args: dict[str, Any],
        tools: Sequence[Tool],
        runner: Runner,
        setting: str,
    ) -> None:
        self._factories, self._args, self._setting = factories, args, setting
        self._runner, self._caller = runner, Caller(runner)
        self._common = {tool.name: tool for tool in tools}
        self._instances: dict[str, Any] = {}
        self._file, found = "", dict(self._common)
        self.awaits = any(is_async(tool.function) for tool in tools)
        for factory in factories.values():
            found |= self._look_at(factory(**args))
        self.tools = [tool.schema for tool in found.values()]
        self.idempotent = [tool.name for tool in found.values() if tool.idempotent]

    def _look_at(self, first: Any) -> dict[str, Tool]:
        """The tools of an instance that is made for this."""
        if not callable(getattr(first, "reset", None)):
            raise EnvironmentFailed(f"{self._setting}: {type(first).__name__} has no method reset(**row)")
        tools = _methods(first)
        functions = [tool.function for tool in tools.values()]
        self.awaits |= any(map(is_async, [*functions, first.reset, getattr(first, "get_reward", None)]))
        self._file = (defined_at(type(first).__init__) or defined_at(first.reset) or (self._file, 0))[0]
        if (close := _closing(first)) is not None and not is_async(close):
            close()
        return tools

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        await self.close(request.name)
        row = {name: without_nulls(value) for name, value in json.loads(request.row).items()}
        factory = self._factory(row)
        instance = await self._runner.call(factory, self._args)
        self._instances[request.name] = instance
        observed = await self._runner.call(instance.reset, _accepted(instance.reset, row))
        chat = _with_observation(request.chat, observed, f"{self._setting}.reset()")
        return chat, [*self._common, *_methods(instance)]

    async def step(self, request: Step) -> Stepped:
        instance = self._instances[request.name]
        stepped = await self._caller.answer(request, self._common | _methods(instance))
        if not (stepped.done or request.last):
            return stepped
        give = getattr(instance, "get_reward", None)
        given = None if give is None else await self._runner.call(give, {})
        reward = stepped.reward
        if given is not None:
            reward = number_of(given, f"{self._setting}.get_reward()") + (reward or 0.0)
        return msgspec.structs.replace(stepped, reward=reward, state=state_of(instance))

    async def close(self, name: str) -> None:
        if (close := _closing(self._instances.pop(name, None))) is not None:
            await self._runner.call(close, {})

    def explain(self, error: BaseException) -> str:
        return explained(self._setting, error, self._file)

    def _factory(self, row: dict[str, Any]) -> Callable[..., Any]:
        if None in self._factories:
            return self._factories[None]
        name = row.pop(WHICH, None)  # no argument of reset
        if name not in self._factories:
            names = ", ".join(map(str, self._factories))
            raise RowUnsuitable(f"its column {WHICH} is {name!r}, and {self._setting} has {names}")
        return self._factories[name]


def _methods(instance: Any) -> dict[str, Tool]:
    """Public functions of its class, those for the trainer apart."""
    idempotent, close = may_repeat(instance), _closing(instance)
    tools = {}
    for name, _ in inspect.getmembers(type(instance), inspect.isfunction):
        if not (name.startswith("_") or name in ("reset", "get_reward") or (name == "close" and close is not None)):
            tools[name] = tool_of(getattr(instance, name), idempotent)
    return tools


def _closing(instance: Any) -> Callable[..., Any] | None:
    """Its `close`, if that takes no argument: then it is for us, and no tool."""
    close = getattr(instance, "close", None)
    return close if callable(close) and not inspect.signature(close).parameters else None


def _accepted(function: Callable[..., Any], row: dict[str, Any]) -> dict[str, Any]:
    """The row's columns that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return row
    return {name: value for name, value in row.items() if name in parameters}


def _with_observation(chat: Chat, observed: Any, what: str) -> Chat:
    """What `reset` returned continues the last message, as in TRL."""
    if observed is None:
        return chat
    text = text_of(observed, what)
    if not chat:
        return [{"role": "user", "content": text}]
    return [*chat[:-1], {**chat[-1], "content": chat[-1]["content"] + text}]


# Makes a turn's calls, and turns their results into messages.

LONGEST = 1 << 16  # characters of a result: what is longer no context could hold
LONGEST_TURN = 1 << 20  # of all results of a turn


class Told(NamedTuple):
    call: Call
    text: str  # that the policy reads
    earned: float | None = None
    list: str = ""  # JSON of the result, if it is a list


class Caller:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def answer(self, request: Step, tools: Mapping[str, Tool]) -> Stepped:
        """The results of the calls in their order. Without any call the policy has spoken its last word.

        As in TRL, sync tools are called one after another, then async ones together.
        """
        if request.malformed:
            return unreadable(request.malformed)
        wanted = request.wanted
        if not wanted:
            return Stepped(done=True)
        by_place: dict[int, Told] = {}
        later = []
        for place, each in enumerate(wanted):
            tool = tools.get(each.name)
            if tool is not None and is_async(tool.function):
                later.append(place)
            else:
                by_place[place] = await self._call(each, tool, tools)
        calls = (self._call(wanted[place], tools[wanted[place].name], tools) for place in later)
        by_place |= zip(later, await asyncio.gather(*calls), strict=True)
        most = LONGEST_TURN // len(by_place)
        longest = min(LONGEST, most)
        answers = [by_place[place] for place in range(len(by_place))]
        earned = [each.earned for each in answers if each.earned is not None]
        return Stepped(
            [_message(each.call.name, encodable(each.text[:longest])) for each in answers],
            reward=sum(earned) if earned else None,
            calls=[each.call for each in answers],
            lists={place: each.list for place, each in enumerate(answers) if 0 < len(each.list) <= most},
        )

    async def _call(self, wanted: Wanted, tool: Tool | None, tools: Mapping[str, Tool]) -> Told:
        began = time.monotonic()
        if tool is None:
            why = f"there is no tool {wanted.name!r}; there are: {', '.join(tools) or 'none'}"
            return Told(Call(name=wanted.name, error=why), trl_error(wanted.name, why))
        try:
            inspect.signature(tool.function).bind(**wanted.arguments)
            result = await self._runner.call(tool.function, wanted.arguments)
            text, earned = tool.result(tool.name, result)
        except (EnvironmentFailed, Exited):
            raise
        except Exception as error:  # what a tool raises, the policy reads
            record = Call(name=wanted.name, seconds=time.monotonic() - began, error=describe(error))
            return Told(record, tool.error(tool.name, error))
        return Told(Call(name=wanted.name, seconds=time.monotonic() - began), text, earned, _json_of(result))


def _json_of(result: Any) -> str:
    """Of a list, which TRL's reward functions get as it is. Empty: it is none, or JSON cannot represent it."""
    try:
        return encodable(json.dumps(result, ensure_ascii=False)) if isinstance(result, list) else ""
    except (TypeError, ValueError, RecursionError):
        return ""


def _message(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content} if name else {"role": "tool", "content": content}
