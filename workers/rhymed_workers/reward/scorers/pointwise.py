"""Decides from its source whether a function of lists processes one element at a time. Pure: runs no user code.

Such a function gives each sample the same reward alone and with others. The answer True is a proof for code that is
built of the statements and expressions below, and does not look at its own frame; whatever else stands in the source
counts as a comparison of elements. Loops and comprehensions over the lists are *rounds*: in a round, names mean this
round's elements, values made of them in the same round, constants, and globals without memory.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

PLAIN = (str, bytes, int, float, complex, bool, type(None), re.Pattern)

CONSUMES = frozenset({"all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"})
"""Built-in functions that have read a generator when they return. One that is kept may read a later round's names."""
BUILT_IN = CONSUMES | {
    "abs", "bool", "bytes", "chr", "divmod", "enumerate", "filter", "float", "format", "hasattr", "hash", "int",
    "isinstance", "issubclass", "iter", "len", "map", "next", "ord", "pow", "print", "range", "repr", "reversed",
    "round", "str", "type", "zip",
}  # fmt: skip
"""Others, as `eval` and `locals`, reach names that the source does not show; exceptions are known, too."""
REFLECTIVE = frozenset({"builtins", "gc", "inspect", "sys"})  # modules that do so

UNDERSTOOD = (
    *(ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Await, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue),
    *(ast.Tuple, ast.List, ast.Dict, ast.Set, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
"""Expressions that mean no more than their parts."""


class _Unknown(Exception):
    """The source contains code that is not understood."""


def is_pointwise(function: Callable[..., Any], given: Iterable[str] = ()) -> bool:
    """`given`: parameters that get the same value in every call; every other one without a default gets a list."""
    try:
        if not isinstance(function, FunctionType) or function.__closure__:
            return False
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) or tree.decorator_list:
            return False
        _Function(tree, function, set(given)).check()
    except (_Unknown, OSError, SyntaxError, TypeError, ValueError, RecursionError):
        return False
    return True


class _Function:
    def __init__(self, tree: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType, given: set[str]) -> None:
        arguments = tree.args
        ordered = [*arguments.posonlyargs, *arguments.args]
        required = ordered[: len(ordered) - len(arguments.defaults)]
        named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        required += [argument for argument, default in named if default is None]
        self.lists = {argument.arg for argument in required} - given
        self.columns = arguments.kwarg.arg if arguments.kwarg else ""  # `**columns`: its values are lists
        self.collected: set[str] = set()  # lists that grow in each round
        self._body, self._globals = tree.body, function.__globals__
        stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._stores = Counter(node.id for node in stored)
        self._local = {*self._stores, *function.__code__.co_varnames}
        self.plain = given - self._stores.keys()  # names of values that cannot change

    def check(self) -> None:
        *statements, last = self._body
        for statement in statements:
            match statement:
                case ast.Expr(ast.Constant()):
                    pass
                case ast.Assign([ast.Name(name)], value):
                    self._assign(name, value)
                case ast.AnnAssign(ast.Name(name), _, value) if value is not None:
                    self._assign(name, value)
                case ast.For(target, iterated, body, []):
                    _Round(self, *self._elements(target, iterated)).run(body)
                case _:
                    raise _Unknown
        match last:
            case ast.Return(ast.Name(name)) if name in self.collected:
                pass
            case ast.Return(value) if value is not None:
                self._listed(value)
            case _:
                raise _Unknown

    def _assign(self, name: str, value: ast.expr) -> None:
        kind = self.lists
        if isinstance(value, ast.List) and not value.elts:
            kind = self.collected
        elif isinstance(value, ast.Constant) or self._is_pattern(value):
            kind = self.plain if self._stores[name] == 1 else set()
        else:
            self._listed(value)
        for names in (self.lists, self.collected, self.plain):
            names.discard(name)
        kind.add(name)

    def _is_pattern(self, value: ast.expr) -> bool:
        """Whether it is `re.compile` of constants."""
        match value:
            case ast.Call(ast.Attribute(ast.Name("re"), "compile"), [ast.Constant(), *_], []):
                return "re" not in self._local and self._globals.get("re") is re
        return False

    def _listed(self, value: ast.expr) -> None:
        """Raises `_Unknown` unless it is a list with an element for each sample, made of that sample alone."""
        match value:
            case ast.Name(name) if name in self.lists:
                return
            case ast.ListComp(element, [ast.comprehension(target, iterated, [], _)]):
                _Round(self, *self._elements(target, iterated)).see(element)
            case ast.Subscript(ast.Name(name), ast.Constant()) if name == self.columns:
                return
            case ast.Call(ast.Attribute(ast.Name(name), "get"), [ast.Constant()], []) if name == self.columns:
                return
            case _:
                raise _Unknown

    def _elements(self, target: ast.expr, iterated: ast.expr) -> tuple[set[str], set[str]]:
        """Names of elements, and of their places in the lists."""
        match iterated, target:
            case ast.Call(ast.Name("enumerate"), [inner], []), ast.Tuple([place, element]):
                self._require_built_in("enumerate")
                elements, places = self._elements(element, inner)
                return elements, places | _names(place)
            case ast.Call(ast.Name("range"), [ast.Call(ast.Name("len"), [listed], [])], []), _:
                self._require_built_in("range", "len")
                self._listed(listed)
                return set(), _names(target)
            case ast.Call(ast.Name("zip"), [_, *_] as several, _), _:
                self._require_built_in("zip")
                for one in several:
                    self._listed(one)
            case _:
                self._listed(iterated)
        return _names(target), set()

    def _require_built_in(self, *names: str) -> None:
        if not all(map(self.is_built_in, names)):
            raise _Unknown

    def is_built_in(self, name: str) -> bool:
        return name not in self._local and name not in self._globals and hasattr(builtins, name)

    def is_steady(self, name: str) -> bool:
        """Whether it is a name whose value cannot change, or of a global without memory of its own: a module, or a
        function or class that keeps state, does so in any call."""
        if name in self.plain or name in self._local:
            return name in self.plain
        value = self._globals.get(name, getattr(builtins, name, None))
        if isinstance(value, ModuleType):
            return value.__name__ not in REFLECTIVE
        if isinstance(value, BuiltinFunctionType):  # a method of an object may change it
            module = value.__self__
            if module is builtins:
                return value.__name__ in BUILT_IN
            return isinstance(module, ModuleType) and module.__name__ not in REFLECTIVE
        if isinstance(value, type) and value.__module__ == "builtins":
            return value.__name__ in BUILT_IN or issubclass(value, BaseException)
        plain = isinstance(value, tuple | frozenset) and all(isinstance(one, PLAIN) for one in value)
        return plain or isinstance(value, (FunctionType, type, *PLAIN))


class _Round:
    """`own`: names of this round's values; `places`: names of its number, with which it may only index lists."""

    def __init__(self, function: _Function, own: set[str], places: set[str]) -> None:
        self._function = function
        self._own, self._places = own, places

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """False: the code after it is not reached."""
        return all(self._step(statement) for statement in body)

    def _step(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Pass():
                pass
            case ast.Continue():
                return False
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [value], [])) if (
                name in self._function.collected
            ):
                self.see(value)
            case ast.Expr(value):
                self.see(value)
            case ast.Assign(targets, value):
                self.see(value)
                for target in targets:
                    self._store(target)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.see(value)
                self._store(target)
            case ast.AugAssign(target, _, value):
                self.see(value)
                self._changes(target)
            case ast.If(test, body, orelse):
                self.see(test)
                return self._either(([], body), ([], orelse))
            case ast.Try(body, handlers, orelse, []):
                for handler in handlers:
                    self.see(handler.type or ast.Constant(None))
                failed = [([handler.name] if handler.name else [], handler.body) for handler in handlers]
                return self._either(([], [*body, *orelse]), *failed)
            case ast.For(target, iterated, body, []):
                self.see(iterated)
                inner = _Round(self._function, set(self._own), self._places)
                inner._bind(_names(target))
                inner.run(body)
            case _:
                raise _Unknown
        return True

    def _either(self, *ways: tuple[Sequence[str], Sequence[ast.stmt]]) -> bool:
        """One of these branches runs, with names of its own: afterwards only the names exist that all branches that
        continue define."""
        before, ends = set(self._own), []
        for names, body in ways:
            self._own = set(before)
            self._bind(set(names))
            if self.run(body):
                ends.append(self._own - set(names))
        self._own = set.intersection(*ends) if ends else before
        return bool(ends)

    def _store(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name | ast.Tuple | ast.List):
            self._bind(_names(target))
        else:
            self._changes(target)

    def _bind(self, names: set[str]) -> None:
        if names & (self._function.lists | self._function.collected | self._places):
            raise _Unknown
        self._own |= names

    def _changes(self, target: ast.expr) -> None:
        """Checks a change of an object, which must belong to this round."""
        while isinstance(target, ast.Subscript | ast.Attribute):
            if isinstance(target, ast.Subscript):
                self.see(target.slice)
            target = target.value
        if not (isinstance(target, ast.Name) and target.id in self._own):
            raise _Unknown

    def see(self, node: ast.AST) -> None:
        """Raises `_Unknown` unless the expression uses only this round's values and constants."""
        match node:
            case ast.Name(name):
                if name not in self._own and not self._function.is_steady(name):
                    raise _Unknown
            case ast.Subscript(ast.Name(name), ast.Name(place)) if (
                name in self._function.lists and place in self._places
            ):
                pass
            case ast.Attribute(_, name) if name.startswith("__"):
                raise _Unknown
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                self._see_made(node)
            case ast.Call(called, [ast.GeneratorExp() as made, *others], named) if self._consumes(called):
                self._see_made(made)
                for part in (called, *others, *named):
                    self.see(part)
            case _ if isinstance(node, UNDERSTOOD):
                for child in ast.iter_child_nodes(node):
                    self.see(child)
            case ast.Call():
                for child in ast.iter_child_nodes(node):
                    self.see(child)
            case _:
                raise _Unknown

    def _consumes(self, called: ast.expr) -> bool:
        match called:
            case ast.Name(name):
                return name in CONSUMES and name not in self._own and self._function.is_built_in(name)
            case ast.Attribute(ast.Constant(), "join"):
                return True
        return False

    def _see_made(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        inner = _Round(self._function, set(self._own), set(self._places))
        for part in node.generators:
            inner.see(part.iter)
            bound = _names(part.target)
            inner._own |= bound
            inner._places -= bound
            for condition in part.ifs:
                inner.see(condition)
        for value in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            inner.see(value)


def _names(target: ast.expr) -> set[str]:
    """The names that it binds. Raises `_Unknown` if it changes any other object."""
    match target:
        case ast.Name(name):
            return {name}
        case ast.Tuple(parts) | ast.List(parts):
            return set().union(*map(_names, parts))
        case ast.Starred(inner):
            return _names(inner)
    raise _Unknown
