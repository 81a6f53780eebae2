"""The user's tools and environments, by `file.py:name` or `package.module:name`.

Raises `EnvironmentFailed` that names the setting, the file and the line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rhymed.config import Environment
from rhymed.errors import EnvironmentFailed, RewardError
from rhymed_workers.environment.hosting.functions import MethodsHost, ToolsHost
from rhymed_workers.environment.hosting.host import Host, explained
from rhymed_workers.environment.hosting.runner import Runner
from rhymed_workers.environment.hosting.texts import TextHost
from rhymed_workers.environment.hosting.tool import Tool, tool_of
from rhymed_workers.environment.hosting.verl import registered, stand_in
from rhymed_workers.scorers.custom import import_named

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
    if not settings.factory:
        return ToolsHost(tools, runner, settings.tools)
    named = _factory(settings.factory, loaded)
    if inspect.isclass(named) and hasattr(named, "init") and hasattr(named, "step"):
        if tools:
            raise EnvironmentFailed(
                f"environment.tools: {settings.factory} reads the policy's text and has no tools: leave them out"
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
    tools = [_tool(each) for each in named]
    if len({tool.name for tool in tools}) < len(tools):
        raise EnvironmentFailed(f"environment.tools = {setting!r}: two tools have the same name")
    return tools


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
