"""What an OpenEnv server says, as tools and messages for the policy, and what the policy says, as actions. Pure.

An environment is of one of three kinds. `mcp`: its actions are calls of MCP tools. `text`: its action has one text,
which is the policy's turn. `tool`: another action is a tool, which the policy calls with the action's fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rhymed.errors import EnvironmentFailed
from rhymed.text import short

Kind = Literal["mcp", "text", "tool"]

ALWAYS = "metadata"  # a field of all actions and observations, and none of the policy's
LIST_TOOLS = {"type": "list_tools"}
ACT = "act"  # the tool's name, if the action's class has none
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Action(NamedTuple):
    """How the policy acts. `name`: of the text's field, or of the tool."""

    kind: Kind
    name: str = ""
    schema: Mapping[str, Any] = MappingProxyType({})  # of the tool, as in OpenAI's API


class Observed(NamedTuple):
    """An answer to `reset` or `step`."""

    text: str
    done: bool
    reward: float | None
    failed: str = ""  # why a tool could not be called


def action_of(schema: Any, wanted: Literal["auto", "text", "tool"]) -> Action:
    """From the action's JSON schema. Raises `EnvironmentFailed`."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties", {}), Mapping):
        raise EnvironmentFailed(f"its /schema has no schema of actions: {short(schema)}")
    fields = {name: each for name, each in schema.get("properties", {}).items() if name != ALWAYS}
    if {"tool_name", "arguments"} <= fields.keys() or not fields:
        return Action("mcp")
    needed = [name for name in schema.get("required", []) if name in fields]
    texts = [name for name in fields if isinstance(fields[name], Mapping) and fields[name].get("type") == "string"]
    one = needed if needed else list(fields) if len(fields) == 1 else []
    speaks = len(one) == 1 and one[0] in texts and "enum" not in fields[one[0]]
    if wanted == "text" and not speaks:
        raise EnvironmentFailed(
            f"environment.action = 'text' needs an action with one text, and this one has {', '.join(fields)}"
        )
    if speaks and wanted != "tool":
        return Action("text", one[0])
    title = str(schema.get("title", ""))
    name = title if NAME.fullmatch(title) else ACT
    parameters = {key: part for key, part in schema.items() if key in ("$defs", "definitions")}
    parameters |= {"type": "object", "properties": fields, "required": needed}
    about = str(schema.get("description", "")).strip() or "Acts in the environment."
    return Action("tool", name, _function(name, about, parameters))


def tools_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """From the answer to `LIST_TOOLS`. Raises `EnvironmentFailed`."""
    try:
        return [
            _function(tool["name"], tool.get("description") or "", tool.get("input_schema") or {"type": "object"})
            for tool in answer["observation"]["tools"]
        ]
    except (KeyError, TypeError, AttributeError):
        raise EnvironmentFailed(f"its answer to list_tools has no tools: {short(answer)}") from None


def call_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The action that calls an MCP tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def observed(answer: Mapping[str, Any]) -> Observed:
    """Raises `EnvironmentFailed`."""
    seen, reward, done = answer.get("observation"), answer.get("reward"), answer.get("done", False)
    if not isinstance(seen, Mapping):
        raise EnvironmentFailed(f"its answer has no observation: {short(answer)}")
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise EnvironmentFailed(f"it gave the reward {short(reward)}: a finite number expected")
    given = None if reward is None else float(reward)
    if "tool_name" in seen and ("result" in seen or "error" in seen):
        failed = _failure(seen)
        return Observed(failed or _result(seen.get("result")), bool(done), given, failed)
    return Observed(_text(seen), bool(done), given)


def _text(seen: Mapping[str, Any]) -> str:
    """One field is its value, several are JSON; those that say nothing are left out."""
    told = {name: value for name, value in seen.items() if name != ALWAYS and value not in (None, "", [], {})}
    if len(told) == 1:
        (value,) = told.values()
        return value if isinstance(value, str) else _json(value)
    return _json(told) if told else ""


def _failure(seen: Mapping[str, Any]) -> str:
    error, result = seen.get("error"), seen.get("result")
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("error_type") or "failed")
    if error:
        return str(error)
    if isinstance(result, Mapping) and result.get("is_error"):
        return _result(result) or "failed"
    return ""


def _result(result: Any) -> str:
    """FastMCP's results hold the value as `data`, and as blocks of content."""
    if isinstance(result, Mapping) and "content" in result:
        if result.get("data") is not None:
            return result["data"] if isinstance(result["data"], str) else _json(result["data"])
        blocks = result["content"] if isinstance(result["content"], list) else []
        return "\n".join(str(block["text"]) for block in blocks if isinstance(block, Mapping) and "text" in block)
    return result if isinstance(result, str) else _json(result)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _function(name: Any, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": str(name), "description": description, "parameters": dict(parameters)},
    }
