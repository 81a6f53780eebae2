"""verl's multi-turn rollouts: functions with `@function_tool` are tools here, unchanged."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rhymed.migrate.entries import Item, Note, Put

DECORATOR = "function_tool"
SETTING = "multi_turn.function_tool_path"


def tools(enabled: bool | None, path: str | None, classes: str | None) -> Iterator[Item]:
    """`path`: a file with decorated functions. `classes`: a list of classes with settings, in YAML."""
    if not enabled:
        return
    if classes:
        why = "a BaseTool is a class of verl's: write its execute as a function, and name that in environment.tools"
        yield Note("multi_turn.tool_config_path", "unsupported", why)
    names = _decorated(Path(path)) if path else []
    if names:
        yield Put("environment.tools", f"{path}:{','.join(names)}", "unchanged: functions of verl's @function_tool")
    elif path:
        yield Note(
            SETTING, "unknown", f"{path} has no function with @{DECORATOR} that can be read: set environment.tools"
        )
    elif not classes:
        yield Note("multi_turn.enable", "unknown", "the source names no tools: set environment.tools or factory")


def limits(enabled: bool | None, turns: int | None, parser: str | None) -> Iterator[Item]:
    if enabled and turns:
        yield Put("environment.max_turns", turns)
    if enabled and parser and parser != "hermes":
        yield Put("environment.parser", parser, "vLLM's parser of this name")


def _decorated(path: Path) -> list[str]:
    """Functions of the file, which is read and never run."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if any(_is_tool(each) for each in node.decorator_list)]


def _is_tool(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) == DECORATOR
