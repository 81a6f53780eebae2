"""The user's tools and environments, by `file.py:name` or `package.module:name`.

Raises `EnvironmentFailed` that names the setting, the file and the line.

`load_host` loads them; `TextHost` hosts SkyRL-Gym's environments.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import EnvironmentFailed, RewardError
from rhymed.core.messages import Call
from rhymed.inputs.chats import Chat
from rhymed_workers.environment.hosting.functions import MethodsHost, ToolsHost
from rhymed_workers.environment.hosting.runner import Runner, is_async
from rhymed_workers.environment.hosting.tool import (
    Host,
    Tool,
    explained,
    number_of,
    state_of,
    text_of,
    tool_of,
)
from rhymed_workers.environment.hosting.verl import registered, stand_in
from rhymed_workers.environment.protocol import STEP, Kind, Open, Step, Stepped
from rhymed_workers.sandbox.usercode import defined_at, import_named

if TYPE_CHECKING:
    from rhymed.core.config import Environment

GYM = "skyrl_gym"
HOLDERS = ("fn", "func", "function", "__wrapped__")
"""Attributes in which decorators keep the function."""


def load_host(settings: Environment, runner: Runner) -> Host:
    if settings.url:
        from rhymed_workers.environment.hosting.remote import find_environment

        return find_environment(settings, runner)
    loaded: dict[str, Any] = {}  # tools and classes of a file share its globals
    stand_in()
    tools = _tools(settings.tools, loaded) if settings.tools else []
    if settings.mcp:
        from rhymed_workers.environment.hosting.mcp import find_tools

        tools += find_tools(settings)
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        setting = "environment.mcp" if settings.mcp else f"environment.tools = {settings.tools!r}"
        raise EnvironmentFailed(f"{setting}: two tools have the same name: {', '.join(twice)}")
    if not settings.factory:
        return ToolsHost(tools, runner, settings.tools or "environment.mcp")
    named = _factory(settings.factory, loaded)
    if inspect.isclass(named) and hasattr(named, "init") and hasattr(named, "step"):
        if tools:
            kind = "mcp" if settings.mcp else "tools"
            raise EnvironmentFailed(
                f"environment.{kind}: {settings.factory} reads the policy's text and has no tools: leave them out"
            )
        return TextHost(named, settings.args, settings.max_turns, runner, settings.factory)
    factories = dict(named) if isinstance(named, Mapping) else {None: named}
    if not factories or not all(map(callable, factories.values())):
        raise EnvironmentFailed(f"environment.factory: {settings.factory} is no class, function or dict of them")
    try:
        return MethodsHost(factories, settings.args, tools, runner, settings.factory)
    except EnvironmentFailed:
        raise
    except Exception as error:  # of the class
        raise EnvironmentFailed(f"environment.factory: {explained(settings.factory, error)}") from error


def _tools(setting: str, loaded: dict[str, Any]) -> list[Tool]:
    place, _, names = setting.rpartition(":")
    if not place or not names:
        raise EnvironmentFailed(f"environment.tools = {setting!r}: write file.py:name or file.py:name,name")
    named = [_named(f"{place}:{name.strip()}", "environment.tools", _holds, loaded) for name in names.split(",")]
    return [_tool(each) for each in named]


def _factory(setting: str, loaded: dict[str, Any]) -> Any:
    """`skyrl_gym:id` is an environment that SkyRL-Gym has registered."""
    module, _, name = setting.rpartition(":")
    if module == GYM:
        from importlib import import_module

        try:
            registry = import_module(f"{GYM}.envs.registration").registry
        except ImportError as error:
            raise EnvironmentFailed(f"environment.factory = {setting!r}: {error}; pip install skyrl-gym") from None
        if name not in registry:
            names = ", ".join(sorted(registry))
            raise EnvironmentFailed(f"environment.factory: skyrl_gym has registered no {name!r}; it has: {names}")
        setting = str(registry[name].entry_point)
    return _named(setting, "environment.factory", lambda one: callable(one) or isinstance(one, Mapping), loaded)


def _holds(tool: Any) -> bool:
    return callable(tool) or any(callable(getattr(tool, name, None)) for name in HOLDERS)


def _tool(given: Any) -> Tool:
    function = plain(given)
    found = registered(function) or tool_of(function)
    schema = getattr(given, "tool_schema", None)
    return found if not isinstance(schema, dict) else replace(found, function=function, schema=schema)


def plain(tool: Any) -> Callable[..., Any]:
    """The function itself, which a decorator may have put into an object."""
    for attribute in HOLDERS:
        inner = getattr(tool, attribute, None)
        if not inspect.isroutine(tool) and not isinstance(tool, functools.partial) and callable(inner):
            return plain(inner)
    if not callable(tool) or not hasattr(tool, "__name__"):
        raise EnvironmentFailed(f"environment.tools: {tool!r:.80} is no function")
    found: Callable[..., Any] = tool
    return found


def _named(name: str, key: str, accepts: Callable[[Any], bool], loaded: dict[str, Any]) -> Any:
    try:
        return import_named(name, key, accepts, loaded)
    except RewardError as error:
        raise EnvironmentFailed(str(error)) from error.__cause__


# SkyRL-Gym's `BaseTextEnv`, unchanged: `init`, `step`, `close`. It parses the policy's text itself.


class TextHost:
    """`max_turns`: the environment reads it in `extras`, as SkyRL's generator gives it."""

    kind: Kind = "text"

    def __init__(
        self, factory: Callable[..., Any], args: dict[str, Any], max_turns: int, runner: Runner, setting: str
    ) -> None:
        self.tools: list[dict[str, Any]] = []
        self.idempotent: list[str] = []
        self.awaits = any(is_async(getattr(factory, name)) for name in ("init", "step"))
        self._factory, self._args, self._setting = factory, args, setting
        self._max_turns, self._runner = max_turns, runner
        self._parameters = inspect.signature(factory).parameters
        self._instances: dict[str, Any] = {}
        self._file = (defined_at(getattr(factory, "step", explained)) or ("", 0))[0]

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        await self.close(request.name)
        given = dict(self._args)
        if "env_config" in self._parameters:
            given.setdefault("env_config", {})
        if "extras" in self._parameters:
            row = {"max_turns": self._max_turns, **json.loads(request.row)}
            given["extras"] = {**row, **given.get("extras", {})}
        instance = await self._runner.call(self._factory, given)
        self._instances[request.name] = instance
        result = await self._runner.call(instance.init, {"prompt": request.chat})
        return _checked(result[0] if isinstance(result, tuple) else result, f"{self._setting}.init()"), []

    async def step(self, request: Step) -> Stepped:
        began, what = time.monotonic(), f"{self._setting}.step()"
        result = await self._runner.call(self._instances[request.name].step, {"action": request.text})
        call = Call(name=STEP, seconds=time.monotonic() - began)
        messages, done, reward = (_field(result, name) for name in ("observations", "done", "reward"))
        given = None if reward is None else number_of(reward, what)
        state = state_of(self._instances[request.name])  # any turn may be the last one: what follows has no room
        return Stepped(_checked(messages or [], what), bool(done), given, [call], state)

    async def close(self, name: str) -> None:
        close = getattr(self._instances.pop(name, None), "close", None)
        if close is not None:
            await self._runner.call(close, {})

    def explain(self, error: BaseException) -> str:
        return explained(self._setting, error, self._file)


def _checked(messages: Any, what: str) -> Chat:
    def is_message(part: Any) -> bool:
        return isinstance(part, Mapping) and {"role", "content"} <= part.keys()

    if not isinstance(messages, list | tuple) or not all(map(is_message, messages)):
        raise EnvironmentFailed(f"{what} returned {messages!r:.80}: a list of {{role, content}} expected")
    return [{**message, "content": text_of(message["content"], what)} for message in messages]


def _field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
