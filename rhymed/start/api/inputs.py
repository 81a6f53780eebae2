"""What a program passes as objects, as files of the run's folder: rows as JSONL, functions as modules.

`write_rows` and `write_functions` write them; `module_text` makes the text of a module out of functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import json
import linecache
import re
import symtable
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rhymed.core import atomic
from rhymed.core.errors import DataError, RhymedError, RunMismatch
from rhymed.core.text import short
from rhymed.inputs.rows import as_json


def is_place(value: Any) -> bool:
    """A file, a folder or a hub id, and not the thing itself."""
    return isinstance(value, str | PathLike)


def write_rows(rows: Any, file: Path, what: str) -> None:
    """A list of dicts, a `datasets.Dataset`, a `pandas.DataFrame`, or anything with a length that gives dicts. Raises
    `DataError`."""
    with atomic.new_file(file) as part, part.open("w") as opened:
        for line in lines(rows, what):
            opened.write(line)


def lines(rows: Any, what: str) -> Iterator[str]:
    """JSON, a row each. Raises `DataError`."""
    number = -1
    for number, row in enumerate(_rows(rows, what)):
        if not isinstance(row, Mapping):
            raise DataError(f"{what}, row {number}: a dict of columns is needed, not {short(row)}")
        try:
            yield json.dumps(as_json(dict(row)), allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError) as error:
            column, why = _unwritable(row, error)
            raise DataError(
                f"{what}, row {number}: column {column!r} cannot be written as JSON ({why}): remove or convert it"
            ) from None
    if number < 0:
        raise DataError(f"{what} has no rows")


def check_rows(rows: Any, file: Path, what: str) -> None:
    """Raises `RunMismatch` if the file has other rows."""
    with file.open() as opened:
        for ours, theirs in itertools.zip_longest(opened, lines(rows, what)):
            if ours != theirs:
                raise RunMismatch(
                    f"{what} differs from the rows of the run, {file}: leave it out to resume the run, or start a new"
                    " run"
                )


def _rows(rows: Any, what: str) -> Any:
    if isinstance(rows, Mapping):
        splits = ", ".join(map(str, rows))
        raise DataError(f"{what} is a dict of {splits}: name one, e.g. dataset[{next(iter(rows), 'train')!r}]")
    if hasattr(rows, "to_dict") and hasattr(rows, "notna"):  # pandas
        return rows.astype(object).where(rows.notna(), None).to_dict("records")
    if not hasattr(rows, "__len__"):
        raise DataError(
            f"{what} is {type(rows).__name__}, whose length is unknown: pass a list of dicts, e.g."
            " list(itertools.islice(rows, 1000))"
        )
    return rows


def _unwritable(row: Mapping[Any, Any], error: Exception) -> tuple[str, str]:
    for name, value in row.items():
        try:
            json.dumps(as_json(value), allow_nan=False)
        except (TypeError, ValueError) as found:
            return str(name), str(found)
    return "?", str(error)


def write_functions(
    functions: Sequence[Callable[..., Any]], folder: Path, what: str, error: type[RhymedError]
) -> str:
    """`file.py:a,b` of functions or a class: their own file if all are importable from there, else a copy in this
    folder. `what`: the argument that has them. Raises `error`."""
    places = [_place(function).rpartition(":") for function in functions]
    if len({file for file, _, _ in places}) == 1 and places[0][0]:
        return f"{places[0][0]}:{','.join(name for _, _, name in places)}"
    try:
        text, names = module_text(functions, what)
    except Uncopied as why:
        raise error(f"{what}: {why}") from None
    return f"{_written(text, names[0] if len(names) == 1 else what, folder)}:{','.join(names)}"


def _written(text: str, name: str, folder: Path) -> Path:
    """A module with this text, whose name is free."""
    for number in itertools.count(1):
        file = folder / (f"{name}.py" if number == 1 else f"{name}_{number}.py")
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            atomic.write(file, text)
        if file.read_text() == text:
            return file
    raise AssertionError("there is always a next number")


def _place(function: Callable[..., Any]) -> str:
    """Where a new process finds the function at the top of an imported module; empty: nowhere."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    file = getattr(module, "__file__", None) or ""
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not function:
        return ""
    if "." in module.__name__ or not file.endswith(".py"):
        return f"{module.__name__}:{name}"
    return f"{Path(file).resolve()}:{name}"


# Functions of a notebook or script, with everything that they need of their module, as the text of a module.
#
# Copied are the functions, the functions and classes of the same module that they use, and values of Python's literal
# types, as they are now. Modules, and what comes from them, are imported by the text. Other values cannot be written
# down: the error names the value. Starts nothing, writes nothing.

REWARD = "reward"  # the argument
IN_A_FILE = 'write it into a file, and name it as "file.py:function"'
LITERAL_CHARS = 4 << 20  # of one copied value


def module_text(functions: Sequence[Callable[..., Any]], what: str) -> tuple[str, list[str]]:
    """The text of a module with these functions or classes, and their names. `what`: the argument that has them.
    Raises `Uncopied`."""
    home = next((str(one.__module__) for one in functions if _importable(one) is None), str(functions[0].__module__))
    writer, names = _Writer(home, annotated=what != REWARD), [str(getattr(one, "__name__", "")) for one in functions]
    for name, function in zip(names, functions, strict=True):
        if inspect.ismethod(function) or not (inspect.isclass(function) or _code_of(function)) or name == "<lambda>":
            raise Uncopied(f"{short(function)} is no function with a name, nor a class: use def, or {IN_A_FILE}")
        writer.need(name, function, what)
    code = _code_of(functions[0])
    return writer.text(code.co_filename if code else inspect.getfile(functions[0])), names


class Uncopied(Exception):
    """Why something cannot be copied."""


class _Writer:
    """Collects the parts of the module, each after those that it uses when it is defined."""

    def __init__(self, home: str, *, annotated: bool = False) -> None:
        """`annotated`: with what annotations name, from which schemas of tools are made."""
        self.parts: list[str] = []
        self._home, self._annotated = home, annotated
        self._imports: dict[str, None] = {}
        self._folders: dict[str, None] = {}  # from which modules are imported
        self._known: dict[str, Any] = {}

    def text(self, file: str) -> str:
        origin = file if Path(file).is_file() else "a notebook"
        head = f'"""Copied by rhymed.train from {origin}."""'.replace("\\", "/")
        paths = [f"sys.path.append({folder!r})" for folder in self._folders]
        imports = ["import sys", *paths, *self._imports] if paths else [*self._imports]
        first = "\n".join([head, "", "from __future__ import annotations", *([""] if imports else []), *imports])
        return "\n\n\n".join([first.rstrip(), *self.parts]) + "\n"

    def define(self, name: str, value: Any) -> None:
        """A function or class of the home module, after what it uses."""
        if not self._is_new(name, value):
            return
        source = _source(value)
        for used in used_names(source, annotated=self._annotated):
            found, other = _look_up(used, value, self._home)
            if found:
                self.need(used, other, name)
        self.parts.append(source)

    def need(self, name: str, value: Any, user: str) -> None:
        if isinstance(value, ModuleType):
            if self._is_new(name, value):
                self._import(value.__name__, f"import {value.__name__}", name)
        elif (literal := _literal(value)) is not None:
            if self._is_new(name, value):
                self.parts.append(f"{name} = {literal}")
        elif _is_from(value, self._home):
            self.define(value.__name__, value)
            if name != value.__name__ and self._is_new(name, value):
                self.parts.append(f"{name} = {value.__name__}")
        elif (origin := _importable(value)) is not None:
            if self._is_new(name, value):
                self._import(origin[0], f"from {origin[0]} import {origin[1]}", name)
        else:
            raise Uncopied(
                f"{user} uses {name}, a {type(value).__name__}, which cannot be copied to its"
                f" processes: create it inside the function, or {IN_A_FILE}"
            )

    def _import(self, module: str, statement: str, name: str) -> None:
        what = statement.rpartition(" ")[2]
        if name == module.partition(".")[0] and statement.startswith("import"):
            statement = f"import {name}"
        elif name != what:
            statement = f"{statement} as {name}"
        self._imports[statement] = None
        if folder := _local_folder(module):
            self._folders[folder] = None

    def _is_new(self, name: str, value: Any) -> bool:
        if name not in self._known:
            self._known[name] = value
            return True
        if self._known[name] is not value:
            raise Uncopied(f"it needs two different values that are both called {name}: rename one of them")
        return False


def _look_up(name: str, user: Any, home: str) -> tuple[bool, Any]:
    """Whether the name has a value where `user` is defined that is not a builtin, and the value."""
    plain: Any = inspect.unwrap(user)
    code = _code_of(user)
    if code is not None:
        for free, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
            if free == name:
                try:
                    return True, cell.cell_contents
                except ValueError:  # it has no value yet
                    return False, None
        values: Mapping[str, Any] = plain.__globals__
    else:
        values = vars(sys.modules[home])
    if name in values and not (name.startswith("__") and name.endswith("__")):
        return values[name] is not getattr(builtins, name, builtins), values[name]
    return False, None


def used_names(source: str, *, annotated: bool) -> list[str]:
    """Names that the definition does not bind itself, in order. `annotated`: with those of functions' annotations."""
    tree = ast.parse(source)
    for node in () if annotated else ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    table = symtable.symtable(ast.unparse(tree), "reward", "exec")
    names = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()]
    return list(dict.fromkeys([*names, *(name for child in table.get_children() for name in _globals(child))]))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _globals(child)


def _source(value: Any) -> str:
    try:
        text = _class_source(value) if inspect.isclass(value) else textwrap.dedent(inspect.getsource(value))
        ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        raise Uncopied(
            f"the source of {value.__name__} cannot be read, so it cannot be copied to its processes: {IN_A_FILE}"
        ) from None
    return text.rstrip()


def _class_source(kind: type) -> str:
    """Found by one of its methods: until Python 3.13 a class of a notebook does not know its own lines."""
    for method in vars(kind).values():
        code = _code_of(method)
        text = "".join(linecache.getlines(code.co_filename)) if code else ""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    return textwrap.dedent(inspect.getsource(kind))


def _code_of(function: Any) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def _is_from(value: Any, home: str) -> bool:
    return getattr(value, "__module__", None) == home and (inspect.isclass(value) or _code_of(value) is not None)


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name under which another process finds this very value."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "." in name:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _local_folder(module: str) -> str:
    """The folder of `sys.path` from which the module was imported, if it is neither Python's nor the working one."""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if not file:
        return ""
    parents = [str(parent) for parent in Path(file).resolve().parents]
    if any(part in ("site-packages", "dist-packages") for part in Path(file).parts):
        return ""
    paths = [str(Path(entry).resolve()) for entry in sys.path if entry]
    found = next((parent for parent in parents if parent in paths), "")
    return "" if not found or found.startswith((sys.base_prefix, sys.prefix)) else found


def _literal(value: Any) -> str | None:
    """Python text of the value; None: it has none."""
    if isinstance(value, re.Pattern):
        return f"__import__('re').compile({value.pattern!r}, {value.flags})"
    text = repr(value)
    if len(text) > LITERAL_CHARS:
        return None
    if type(value).__module__ == "typing":
        return _annotation(value, text)
    try:
        copy = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(copy) is type(value) and copy == value else None


def _annotation(value: Any, text: str) -> str | None:
    """Of an alias like Literal["up", "down"], whose text is Python if it names only what is in typing or built in."""
    try:
        same = eval(text, {"typing": typing}) == value
    except (SyntaxError, NameError, AttributeError, TypeError):
        return None
    return text.replace("typing.", "__import__('typing').") if same else None
