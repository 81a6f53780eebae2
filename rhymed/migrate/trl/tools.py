"""The tools and environments of a script: a module that has them alone, and the keys that name them.

An environment's process imports their file, as a scoring process imports that of a reward, so they are copied, too
(`copies`). What the script imports is imported by the module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rhymed.migrate.entries import Item, Note, Put
from rhymed.migrate.trl.copies import Copied, module_text, undefined
from rhymed.migrate.trl.rewards import imported
from rhymed.migrate.trl.script import Script

WHY = "unchanged: TRL's convention is known here"


def script_tools(script: Script, trainer: dict[str, ast.expr], module: Path) -> tuple[list[Item], str]:
    """`[environment]`, and the text of the file `module`, or "" if the trainer is given neither."""
    copied, items = Copied(), list[Item]()
    tools, factory = (_given(script, trainer, name) for name in ("tools", "environment_factory"))
    if tools is not None:
        items += _tools(script, tools, copied, module)
    if factory is not None:
        name = _name(script, factory) or "environment_factory"
        copied.add(factory, name)
        items.append(Put("environment.factory", f"{module}:{name}", WHY))
    text = module_text(script, copied, "Tools and environments")
    if missing := undefined(text):
        why = f"{module} uses {', '.join(missing)}, which only the script has when it runs: write that there"
        items.append(Note("tools" if tools is not None else "environment_factory", "unknown", why))
    return items, text


def _given(script: Script, trainer: dict[str, ast.expr], name: str) -> ast.expr | None:
    node = trainer.get(name)
    inner = None if node is None else script.follow(node)
    empty = isinstance(inner, ast.Constant) or (isinstance(inner, ast.List | ast.Tuple) and not inner.elts)
    return None if inner is None or empty else node


def _tools(script: Script, given: ast.expr, copied: Copied, module: Path) -> Iterator[Item]:
    node = script.follow(given)
    if not isinstance(node, ast.List | ast.Tuple):
        yield Note("tools", "unknown", f"they are `{ast.unparse(node)}`: name them in environment.tools, file.py:a,b")
        return
    names = []
    for tool in node.elts:
        if name := _name(script, tool):
            copied.add(tool, name)
            names.append(name)
        else:
            why = f"`{ast.unparse(tool)}` is no function of the script: write one, and add it to environment.tools"
            yield Note("tools", "unknown", why)
    if names:
        yield Put("environment.tools", f"{module}:{','.join(names)}", WHY)


def _name(script: Script, node: ast.expr) -> str:
    """Of a function or class that the script defines or imports; empty: it is an expression."""
    if not isinstance(node, ast.Name):
        return ""
    return node.id if node.id in script.functions or imported(script, node.id) else ""
