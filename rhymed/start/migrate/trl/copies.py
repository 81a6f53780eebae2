"""Modules with functions and classes of a script, copied because the script itself trains when it is imported.

Each has the imports, constants, functions and classes that the copied ones use; their text is unchanged. What is
defined on a condition keeps the condition. What the script reads from its command line becomes the defaults of that.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from rhymed.start.api.inputs import used_names
from rhymed.start.migrate.entries import Unknown
from rhymed.start.migrate.trl.script import PARSE, Script, callee, is_main


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
    chosen, scope = _closure(script, copied.nodes, needed)
    imports, others = [], []
    for statement in scope:
        if _is_parsing(statement) and statement in chosen:
            imports.append("import argparse")
            others.append(_parsed(script, statement))
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            others += map(ast.unparse, _pruned(statement, chosen, needed))
        elif statement in chosen:
            kept = _pruned(statement, chosen, needed)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imports += map(ast.unparse, kept)
            else:
                others.append(_text(script, statement))
    for node, alias in zip(copied.nodes, copied.names, strict=True):
        if not isinstance(node, ast.Name):
            others.append(f"{alias} = {ast.unparse(node)}")
    head = f'"""{title} of {script.path.name}, unchanged."""'
    return (
        "\n\n\n".join([*(("\n".join([head, "", *dict.fromkeys(imports)]),) if imports else (head,)), *others]) + "\n"
    )


def _is_parsing(statement: ast.stmt) -> TypeGuard[ast.Assign]:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and callee(value) in PARSE


def _parsed(script: Script, statement: ast.Assign) -> str:
    """In place of the call that reads the command line, which is that of a process of rhymed."""
    known = {name: value for name, value in script.arguments.items() if not isinstance(value, Unknown)}
    values = ", ".join(f"{name}={value!r}" for name, value in known.items() if name.isidentifier())
    names = [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return "\n".join(f"{name} = argparse.Namespace({values})  # the script's defaults" for name in names)


def _pruned(statement: ast.stmt, chosen: list[ast.stmt], needed: set[str]) -> list[ast.stmt]:
    """The chosen part of a statement, under its condition."""

    def inner(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [kept for each in body for kept in _pruned(each, chosen, needed)]

    if isinstance(statement, ast.With):
        return inner(statement.body)
    if isinstance(statement, ast.If):
        body, other = inner(statement.body), inner(statement.orelse)
        return [ast.If(statement.test, body or [ast.Pass()], other)] if body or other else []
    if isinstance(statement, ast.Try):
        body, other = inner(statement.body), inner(statement.orelse)
        handlers = [
            ast.ExceptHandler(one.type, one.name, inner(one.body) or [ast.Pass()]) for one in statement.handlers
        ]
        if not body and not other:
            return []
        return [ast.Try(body or [ast.Pass()], handlers, other, [])] if handlers else [*body, *other]
    if statement not in chosen:
        return []
    if isinstance(statement, ast.Import | ast.ImportFrom):
        kept = [each for each in statement.names if (each.asname or each.name).partition(".")[0] in needed]
        return [_import_of(statement, kept)]
    return [statement]


def _import_of(statement: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    if isinstance(statement, ast.Import):
        return ast.Import(names)
    return ast.ImportFrom(statement.module, names, statement.level)


def _text(script: Script, statement: ast.stmt) -> str:
    """As it is written, with its decorators and comments."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    return textwrap.dedent("\n".join(script.path.read_text().splitlines()[first - 1 : statement.end_lineno]))


def _closure(script: Script, roots: Sequence[ast.expr], needed: set[str]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Statements of the module that define what the expressions use; and all that may, in the order of the file,
    with the `if`, `try` and `with` in which the former may be."""
    defined: dict[str, list[ast.stmt]] = {}
    tests: dict[ast.stmt, list[ast.expr]] = {}  # conditions of a statement
    scope = _scope(script, roots)
    for statement, conditions in _flat(scope):
        tests[statement] = conditions
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
                todo += (one for one in new if not _is_parsing(one))
                todo += (test for one in new for test in tests[one])
    return chosen, scope


def _scope(script: Script, roots: Sequence[ast.expr]) -> list[ast.stmt]:
    """Statements outside of functions, and of the function, or of the part that only runs as a script, in which a
    reward function is defined."""
    scope = [statement for statement in script.tree.body if not is_main(statement)]
    for root in roots:
        names = {node.id for node in ast.walk(root) if isinstance(node, ast.Name)} & script.functions.keys()
        for outer in ast.walk(script.tree):
            if isinstance(outer, ast.FunctionDef) or is_main(outer):
                inside = [statement for statement, _ in _flat(outer.body)]
                scope += outer.body if any(script.functions[name] in inside for name in names) else []
    return sorted(dict.fromkeys(scope), key=lambda statement: statement.lineno)


def _flat(body: Sequence[ast.stmt], tests: Sequence[ast.expr] = ()) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
    """With those inside `if`, `try` and `with`, and the conditions under which each is run."""
    for statement in body:
        if not isinstance(statement, ast.If | ast.Try | ast.With):
            yield statement, list(tests)
            continue
        above = [*tests, statement.test] if isinstance(statement, ast.If) else tests
        handlers = [each for one in getattr(statement, "handlers", []) for each in one.body]
        yield from _flat([*statement.body, *getattr(statement, "orelse", []), *handlers], above)


def conditional(text: str) -> str:
    """Conditions on the definitions of a module."""
    tests = [node.test for node in ast.parse(text).body if isinstance(node, ast.If)]
    return ", ".join(f"`{ast.unparse(test)}`" for test in tests if "TYPE_CHECKING" not in ast.unparse(test))


def undefined(text: str) -> list[str]:
    """Names that the module's functions use and nothing defines."""
    symbols = symtable.symtable(text, "module", "exec").get_symbols()
    own = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()}
    return sorted({*used_names(text, annotated=True)} - own - {*vars(builtins), "__file__", "__name__"})


def _defines(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((each.asname or each.name).partition(".")[0] for each in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
