"""A tool: a function with its schema, and how its results become text.

The text is that of the framework that the function comes from, since policies were trained on it: TRL's `str(result)`
and `{'error': ...}`.

`Tool` is the function; `Host` is what a process offers to its pool, whatever kind its environments are.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rhymed.core.errors import EnvironmentFailed
from rhymed.core.messages import Call
from rhymed.inputs.chats import Chat
from rhymed_workers.environment.hosting.runner import TooLate
from rhymed_workers.environment.protocol import Kind, Open, Step, Stepped
from rhymed_workers.reward.scorers.result import LARGEST, TOO_LARGE
from rhymed_workers.sandbox.usercode import defined_at, describe, raised_at

Result = tuple[str, float | None]
"""What the policy reads, and what the call earned; None: tools of its kind earn nothing."""


def trl_result(name: str, result: Any) -> Result:
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        return text_of(result, f"tool {name}"), None
    return str(result), None


def trl_error(name: str, error: object) -> str:
    return str({"error": words_of(error)})


def words_of(error: object) -> str:
    try:
        return str(error)
    except Exception:  # user code may have broken its own __str__
        return type(error).__name__


def unreadable(malformed: str) -> Stepped:
    """The answer to a turn whose calls cannot be read."""
    message = {"role": "tool", "content": trl_error("", malformed)}
    return Stepped([message], calls=[Call(name="?", error=malformed)])


def encodable(text: str) -> str:
    """Without halves of surrogate pairs, which UTF-8 does not have."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True)
class Tool:
    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    idempotent: bool = False
    result: Callable[[str, Any], Result] = trl_result  # (name, what it returned)
    error: Callable[[str, object], str] = trl_error  # (name, what it raised)


def tool_of(function: Callable[..., Any], idempotent: bool = False) -> Tool:
    """As TRL takes it. Raises `EnvironmentFailed`."""
    schema = schema_of(function)
    return Tool(str(schema["function"]["name"]), function, schema, idempotent or may_repeat(function))


def may_repeat(code: Any) -> bool:
    """Whether an interrupted call of it may be made again, as its author says."""
    return bool(getattr(code, "idempotent", False))


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """As in OpenAI's API, from type hints and a docstring in Google's style. Raises `EnvironmentFailed`."""
    try:
        schema: dict[str, Any] = transformers_schemas().get_json_schema(function)
    except Exception as error:  # of several kinds
        file, line = defined_at(function) or ("", 0)
        where = f" ({file}, line {line})" if file else ""
        raise EnvironmentFailed(
            f"tool {getattr(function, '__name__', function)}{where} needs type hints and a docstring that describes"
            f" each argument (Args:): {describe(error)}"
        ) from None
    return schema


def transformers_schemas() -> ModuleType:
    """transformers' module that makes schemas, without the rest of it where that is not needed.

    Each process with tools would take 1.6 s of a CPU and 230 MB to import transformers and torch, which the module
    asks only whether a hint is an image or a tensor: none is where their libraries were not imported.
    """
    name = "transformers.utils.chat_template_utils"
    if not sys.modules.keys() & {"transformers", "torch", "PIL"}:
        with contextlib.suppress(Exception):  # another release, whose module needs more
            return _schemas_alone()
    return importlib.import_module(name)


@functools.cache
def _schemas_alone() -> ModuleType:
    found = importlib.util.find_spec("transformers")
    places = list((found and found.submodule_search_locations) or [])
    package, known, logs = (ModuleType(f"rhymed_schemas{part}") for part in ("", ".import_utils", ".logging"))
    package.__path__ = [str(Path(places[0]) / "utils")]
    for library in ("jinja", "torch", "vision"):
        setattr(known, f"is_{library}_available", lambda: False)
    vars(logs)["get_logger"] = logging.getLogger
    vars(package)["logging"] = logs
    sys.modules.update({module.__name__: module for module in (package, known, logs)})
    return importlib.import_module(f"{package.__name__}.chat_template_utils")


def text_of(content: Any, what: str) -> str:
    """Of a message's content, which may be a list of blocks. Raises `EnvironmentFailed` for what is no text."""
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise EnvironmentFailed(f"{what} returned {content!r:.80}: text expected")
    others = sorted({str(part.get("type")) for part in content} - {"text"})
    if others:
        raise EnvironmentFailed(f"{what} returned {', '.join(others)}: policies of rhymed read text alone")
    return encodable("".join(str(part.get("text", "")) for part in content))


# The environments of one process, as `serving` asks them: one for each sample, or the same tools for all.

LONGEST_STATE = 1 << 16  # characters of the attributes of an environment


class Host(Protocol):
    """Each knows one convention of its users."""

    kind: Kind
    tools: list[dict[str, Any]]  # schemas
    idempotent: list[str]
    awaits: bool

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        """The chat that the sample begins with, and the names of its tools."""

    async def step(self, request: Step) -> Stepped: ...

    async def close(self, name: str) -> None: ...

    def explain(self, error: BaseException) -> str:
        """Of the user's code, with file and line."""


def number_of(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailed(f"{what} gave the reward {value!r:.80}: a finite number expected")
    if abs(number) > LARGEST:
        raise EnvironmentFailed(f"{what} gave the reward {number:g}: {TOO_LARGE}")
    return number


def state_of(instance: Any) -> str:
    """JSON object of its public attributes that JSON can represent and that are not large."""
    kept: dict[str, str] = {}
    for name, value in list(getattr(instance, "__dict__", {}).items()):
        if name.startswith("_"):
            continue
        with contextlib.suppress(Exception):  # an attribute that JSON cannot represent is left out
            text = json.dumps(value, allow_nan=False)
            if len(text) <= LONGEST_STATE - sum(map(len, kept.values())):
                kept[name] = text
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in kept.items()) + "}"


def explained(setting: str, error: BaseException, file: str = "") -> str:
    """`file`: the user's."""
    if isinstance(error, EnvironmentFailed):
        return str(error)
    if isinstance(error, TooLate):
        return f"{setting} {error}"
    place = raised_at(error, file) if file else ""
    return f"{setting} raised {describe(error)}{f' ({place})' if place else ''}"
