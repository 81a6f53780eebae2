"""Functions as tools, and classes whose public methods are tools: TRL's `tools` and `environment_factory`, unchanged.

An environment is made for each sample, `reset` gets the sample's row, and what it returns continues the last message.
Of a dict of classes, the row's column `environment` names the sample's.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rhymed.errors import EnvironmentFailed, RowUnsuitable
from rhymed_workers.environment.hosting.calling import Caller
from rhymed_workers.environment.hosting.host import explained, number_of
from rhymed_workers.environment.hosting.runner import Runner, is_async
from rhymed_workers.environment.hosting.tool import Tool, is_pure, may_repeat, text_of, tool_of
from rhymed_workers.environment.protocol import Chat, Kind, Open, Step, Stepped
from rhymed_workers.scorers.explain import defined_at

WHICH = "environment"
"""The row's column that names its environment, if there are several."""


class ToolsHost:
    """Functions without state."""

    kind: Kind = "tools"

    def __init__(self, tools: Sequence[Tool], runner: Runner, setting: str) -> None:
        self.tools = [tool.schema for tool in tools]
        self.idempotent = [tool.name for tool in tools if tool.idempotent]
        self.pure = [tool.name for tool in tools if tool.pure]
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
        self._file, found, states = "", dict(self._common), list[bool]()
        self.awaits = any(is_async(tool.function) for tool in tools)
        for factory in factories.values():
            first = factory(**args)
            states.append(is_pure(first))
            found |= self._look_at(first)
        self.tools = [tool.schema for tool in found.values()]
        self.idempotent = [tool.name for tool in found.values() if tool.idempotent]
        self.pure = list(found) if all([*states, *(tool.pure for tool in tools)]) else []

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
        row = json.loads(request.row)
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
        if given is None:
            return stepped
        reward = number_of(given, f"{self._setting}.get_reward()") + (stepped.reward or 0.0)
        return Stepped(stepped.messages, stepped.done, reward, stepped.calls)

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
