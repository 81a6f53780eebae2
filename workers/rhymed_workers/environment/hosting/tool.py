"""A tool: a function with its schema, and how its results become text.

The text is that of the framework that the function comes from, since policies were trained on it: TRL's `str(result)`
and `{'error': ...}`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rhymed.errors import EnvironmentFailed
from rhymed_workers.scorers.explain import defined_at, describe

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


def encodable(text: str) -> str:
    """Without halves of surrogate pairs, which UTF-8 does not have."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True)
class Tool:
    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    idempotent: bool = False
    pure: bool = False
    result: Callable[[str, Any], Result] = trl_result  # (name, what it returned)
    error: Callable[[str, object], str] = trl_error  # (name, what it raised)


def tool_of(function: Callable[..., Any], idempotent: bool = False) -> Tool:
    """As TRL takes it. Raises `EnvironmentFailed`."""
    schema = schema_of(function)
    return Tool(
        str(schema["function"]["name"]), function, schema, idempotent or may_repeat(function), is_pure(function)
    )


def may_repeat(code: Any) -> bool:
    """Whether an interrupted call of it may be made again, as its author says."""
    return bool(getattr(code, "idempotent", False)) or is_pure(code)


def is_pure(code: Any) -> bool:
    """Whether a call changes nothing outside of the sample, and always has the same answer, as its author says."""
    return bool(getattr(code, "pure", False))


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """As in OpenAI's API, from type hints and a docstring in Google's style. Raises `EnvironmentFailed`."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # of several kinds
        file, line = defined_at(function) or ("", 0)
        where = f" ({file}, line {line})" if file else ""
        raise EnvironmentFailed(
            f"tool {getattr(function, '__name__', function)}{where} needs type hints and a docstring that describes"
            f" each argument (Args:): {describe(error)}"
        ) from None
    return schema


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
