"""The user's tools or environment class, by `file.py:name` or `package.module:name`. Runs in a cage.

Raises `EnvironmentFailed` that names the setting, the file and the line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rhymed.config import Environment
from rhymed.errors import EnvironmentFailed, RewardError
from rhymed_workers.environment.host import Host, MethodsHost, TextHost, ToolsHost
from rhymed_workers.scorers.custom import import_named

Tool = Callable[..., Any]


def load_host(settings: Environment) -> Host:
    if settings.tools:
        return ToolsHost({name: tool for name, tool in _tools(settings.tools)}, settings.tools)
    kind = _named(settings.factory, "environment.factory")
    if not callable(kind):
        raise EnvironmentFailed(f"environment.factory: {settings.factory} is no class or function")
    if inspect.isclass(kind) and hasattr(kind, "init") and hasattr(kind, "step"):
        return TextHost(kind, settings.args, settings.factory)
    return MethodsHost(kind, settings.args, settings.factory)


def _tools(setting: str) -> list[tuple[str, Tool]]:
    place, _, names = setting.rpartition(":")
    if not place or not names:
        raise EnvironmentFailed(f"environment.tools = {setting!r}: write file.py:name or file.py:name,name")
    tools = [plain(_named(f"{place}:{name.strip()}", "environment.tools", _holds)) for name in names.split(",")]
    return [(tool.__name__, tool) for tool in tools]


HOLDERS = ("fn", "func", "function", "__wrapped__")
"""Attributes in which decorators keep the function."""


def _holds(tool: Any) -> bool:
    return callable(tool) or any(callable(getattr(tool, name, None)) for name in HOLDERS)


def plain(tool: Any) -> Tool:
    """The function itself. verl's `@function_tool` leaves an object that has it."""
    for attribute in HOLDERS:
        inner = getattr(tool, attribute, None)
        if not inspect.isroutine(tool) and not isinstance(tool, functools.partial) and callable(inner):
            return plain(inner)
    if not callable(tool) or not hasattr(tool, "__name__"):
        raise EnvironmentFailed(f"environment.tools: {tool!r:.80} is no function")
    found: Tool = tool
    return found


def _named(name: str, key: str, accepts: Callable[[Any], bool] = callable) -> Any:
    try:
        return import_named(name, key, accepts)
    except RewardError as error:
        raise EnvironmentFailed(str(error)) from error.__cause__
