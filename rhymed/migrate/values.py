"""Values as other frameworks write them. Pure."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def run_name(text: str) -> str:
    """As `run.name` takes it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "run"


def typed(value: Any) -> Any:
    """YAML 1.1 reads 1e-6 as text; both frameworks read it as a number. Inside lists and maps, too."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        number = float(value)
        return int(number) if number.is_integer() and not re.search(r"[.eE]", value) else number
    if isinstance(value, list):
        return [typed(each) for each in value]
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    return value


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Empty maps are left out."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def arithmetic(text: str) -> int | None:
    """The value of `$((...))` in a shell script, numbers only; None: it has names in it."""
    try:
        value = _number(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    return int(value)


def _number(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        division = operator.floordiv if isinstance(node.op, ast.Div) else OPERATORS[type(node.op)]
        return division(_number(node.left), _number(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    raise ValueError("not a number")
