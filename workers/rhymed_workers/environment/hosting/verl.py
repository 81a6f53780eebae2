"""Functions with verl's `@function_tool`, unchanged: their names, schemas, results and errors are those of verl.

A file with them imports verl. Where that is not installed, which tools do not need, a stand-in for the modules that
such a file imports has the decorator, the base of tools that are classes, and the types of arguments and results
(`verl_types`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import EnvironmentFailed
from rhymed_workers.environment.hosting.tool import Result, Tool, may_repeat, schema_of, words_of

if TYPE_CHECKING:
    from rhymed_workers.environment.hosting.verl_types import ToolResponse

MODULE, SCHEMAS, BASE = "verl.tools.function_tool", "verl.tools.schemas", "verl.tools.base_tool"
TYPES = ["OpenAIFunctionToolSchema", "ToolResponse"]
"""Names in `SCHEMAS`."""


class BaseTool:
    """verl's: the base of tools that are classes. `create` makes the state of a call, `release` ends it."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config, self.tool_schema = config, tool_schema or self.get_openai_tool_schema()
        function = self.tool_schema.function
        self.name = function["name"] if isinstance(function, dict) else function.name

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), _type("ToolResponse")()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return _type("ToolResponse")(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        pass


class Registered:
    """What verl's registry keeps of a function."""

    def __init__(self, name: str, fn: Callable[..., Any], schema: Any) -> None:
        self.name, self.fn, self.tool_schema = name, fn, schema


def stand_in() -> None:
    """Unless verl is installed."""
    if "verl" in sys.modules or importlib.util.find_spec("verl") is not None:
        return
    registry: dict[str, Registered] = {}

    def function_tool(name: Any = None, *, schema: Any = None) -> Any:
        def decorate(function: Callable[..., Any], called: str = "") -> Callable[..., Any]:
            called = called or function.__name__
            if called in registry and registry[called].fn is not function:
                raise ValueError(f"Function tool {called!r} is registered twice")
            registry[called] = Registered(called, function, schema)
            return function

        return decorate(name) if callable(name) else lambda function: decorate(function, name or "")

    for place in ("verl", "verl.tools", SCHEMAS, MODULE, BASE):
        sys.modules[place] = ModuleType(place, "A stand-in of rhymed's for verl, which is not installed.")
    vars(sys.modules[SCHEMAS]).update(__getattr__=_type, __all__=TYPES)
    vars(sys.modules[BASE]).update(BaseTool=BaseTool)
    vars(sys.modules[MODULE]).update(function_tool=function_tool, FUNCTION_TOOL_REGISTRY=registry)
    parts = {place.rpartition(".")[2]: sys.modules[place] for place in (MODULE, SCHEMAS, BASE)}
    vars(sys.modules["verl.tools"]).update(parts, __path__=[])
    vars(sys.modules["verl"]).update(tools=sys.modules["verl.tools"], __path__=[])


def _type(name: str) -> Any:
    if name not in TYPES:
        raise AttributeError(name)
    return getattr(importlib.import_module("rhymed_workers.environment.hosting.verl_types"), name)


def registered(function: Any) -> Tool | None:
    """As verl knows it; None: it is not one of verl's."""
    registry = getattr(sys.modules.get(MODULE), "FUNCTION_TOOL_REGISTRY", {})
    entry = next((each for each in registry.values() if each.fn is function), None)
    if entry is None:
        return None
    given = entry.tool_schema
    if given is None:
        given = schema_of(function)
        given = {**given, "function": {**given["function"], "name": entry.name}}
    schema = given if isinstance(given, dict) else given.model_dump(exclude_unset=True, exclude_none=True)
    return Tool(entry.name, function, schema, may_repeat(function), verl_result, verl_error)


def verl_result(name: str, result: Any) -> Result:
    """A response, or a tuple of it, its reward and metrics; a reward of None is 0."""
    reward: Any = 0.0
    if isinstance(result, tuple):
        if not 1 <= len(result) <= 3:
            raise TypeError(f"tool {name} returned {len(result)} values: (response, reward, metrics) expected")
        result, reward, *_ = (*result, None, None)
    return _text(name, result), float(reward or 0.0)


def verl_error(name: str, error: object) -> str:
    return f"Error executing tool '{name}': {words_of(error)}"


def _text(name: str, result: Any) -> str:
    if any(getattr(result, kind, None) for kind in ("image", "video")):
        raise EnvironmentFailed(f"tool {name} returned an image or a video: policies of rhymed read text alone")
    if isinstance(result, dict):
        return json.dumps(result, ensure_ascii=False)
    if hasattr(result, "text") and hasattr(result, "image"):
        return result.text or ""
    return result if isinstance(result, str) else str(result)
