"""Modules with functions and classes of a script, copied because the script itself trains when it is imported.

Each has the imports, constants, functions and classes that the copied ones use; their text is unchanged.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from rhymed.migrate.trl.script import Script


@dataclass
class Copied:
    """What a module is to have."""

    nodes: list[ast.expr] = field(default_factory=list)  # expressions in the script
    names: list[str] = field(default_factory=list)  # that they get in the module

    def add(self, node: ast.expr, name: str) -> None:
        self.nodes.append(node)
        self.names.append(name)


def module_text(script: Script, copied: Copied, title: str) -> str:
    """Empty if nothing is to be copied. `title`: what it has, for its docstring."""
    if not copied.nodes:
        return ""
    needed: set[str] = set()
    statements = _closure(script, copied.nodes, needed)
    imports, others = [], []
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            kept = [each for each in statement.names if (each.asname or each.name).partition(".")[0] in needed]
            imports.append(ast.unparse(_import_of(statement, kept)))
        else:
            others.append(_text(script, statement))
    for node, alias in zip(copied.nodes, copied.names, strict=True):
        if not isinstance(node, ast.Name):
            others.append(f"{alias} = {ast.unparse(node)}")
    head = f'"""{title} of {script.path.name}, unchanged."""'
    return "\n\n\n".join([*(("\n".join([head, "", *imports]),) if imports else (head,)), *others]) + "\n"


def _import_of(statement: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    if isinstance(statement, ast.Import):
        return ast.Import(names)
    return ast.ImportFrom(statement.module, names, statement.level)


def _text(script: Script, statement: ast.stmt) -> str:
    """As it is written, with its decorators and comments."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    return textwrap.dedent("\n".join(script.path.read_text().splitlines()[first - 1 : statement.end_lineno]))


def _closure(script: Script, roots: Sequence[ast.expr], needed: set[str]) -> list[ast.stmt]:
    """Statements of the module that define what the expressions use, in the order of the file."""
    defined: dict[str, list[ast.stmt]] = {}
    scope = _scope(script, roots)
    for statement in scope:
        for name in _defines(statement):
            defined.setdefault(name, []).append(statement)
    chosen: list[ast.stmt] = []
    todo: list[ast.AST] = list(roots)
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Name) and node.id not in needed and node.id not in vars(builtins):
                needed.add(node.id)
                new = [statement for statement in defined.get(node.id, []) if statement not in chosen]
                chosen += new
                todo += new
    return [statement for statement in scope if statement in chosen]


def _scope(script: Script, roots: Sequence[ast.expr]) -> list[ast.stmt]:
    """Statements outside of functions, and of the function, or of the part that only runs as a script, in which a
    reward function is defined."""
    scope = _flat([statement for statement in script.tree.body if not _is_main(statement)])
    for root in roots:
        names = {node.id for node in ast.walk(root) if isinstance(node, ast.Name)} & script.functions.keys()
        for outer in ast.walk(script.tree):
            if isinstance(outer, ast.FunctionDef) or _is_main(outer):
                body = _flat(outer.body)
                scope += body if any(script.functions[name] in body for name in names) else []
    return sorted(dict.fromkeys(scope), key=lambda statement: statement.lineno)


def _is_main(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """With those inside `if`, `try` and `with`."""
    found: list[ast.stmt] = []
    for statement in body:
        found.append(statement)
        if isinstance(statement, ast.If | ast.Try | ast.With):
            found += _flat([*statement.body, *getattr(statement, "orelse", [])])
    return found


def undefined(text: str) -> list[str]:
    """Names that the module's functions use and nothing defines."""
    table = symtable.symtable(text, "module", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    own |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_namespace()} | set(vars(builtins))
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    todo = table.get_children()
    while todo:
        inner = todo.pop()
        used |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
        todo += inner.get_children()
    return sorted(used - own - {"__file__", "__name__"})


def _defines(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((each.asname or each.name).partition(".")[0] for each in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
