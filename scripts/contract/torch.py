"""The names of torch that rhymed uses, as one release has them: every name in the source, and its signature.

Found by reading the code: a name that an import binds, and its attributes (`torch.cuda.device`); the methods of
parameters with an annotation and of variables that a class of torch made; and `METHODS`, of objects whose class does
not show. Not found are methods of other variables, and operations under `torch.ops`, which are compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scripts.contract.sources import Sources

ROOT = Path(__file__).parents[2]
FOLDERS = ("rhymed", "broker", "store", "workers")
PACKAGE = "torch"
METHODS = {  # class -> names that the code calls, or reads
    "torch.distributed.fsdp.FSDPModule": "set_gradient_divide_factor(1.0) set_force_sum_reduction_for_comms(True)",
    "torch.distributed.tensor.DTensor": "full_tensor() to_local() device_mesh placements",
    "torch.UntypedStorage": "_share_filename_cpu_()",
    "torch.Event": "record() synchronize()",
    "torch.nn.attention.flex_attention": "flex_attention(q,k,v,block_mask=mask,scale=scale,enable_gqa=True)",
    "torch.utils.checkpoint": "checkpoint(f,x,use_reentrant=False)",
}
UNSEEN: dict[str, str] = {}  # name -> why no source has it


class Use(NamedTuple):
    """`call`: None if it is only read."""

    name: str
    call: ast.Call | None
    place: str


@cache
def uses() -> tuple[Use, ...]:
    """Uses in rhymed's code, and `METHODS`."""
    found = [use for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")) for use in of_file(file)]
    for where, names in METHODS.items():
        for text in names.split():
            node = ast.parse(text, mode="eval").body
            call = node if isinstance(node, ast.Call) else None
            found.append(Use(f"{where}.{ast.unparse(call.func) if call else text}", call, "METHODS"))
    return tuple(found)


def of_file(file: Path) -> Iterator[Use]:
    text = file.read_text()
    if f"import {PACKAGE}" not in text and f"from {PACKAGE}" not in text:
        return
    nodes = list(ast.walk(ast.parse(text)))
    names = dict(_imports(nodes))
    known = names | dict(_typed(nodes, names))
    place = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name := names.get(alias.asname or alias.name):
                    yield Use(name, None, f"{place}:{node.lineno}")
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            name, call = _dotted(node, known), calls.get(id(node))
            if not name or "." not in name or name.startswith("torch.ops."):
                continue
            if call or _dotted(node, names):  # of a variable only calls
                yield Use(name, call, f"{place}:{node.lineno}")


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names that imports bind to something of torch, with the full name."""
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.Import) and alias.name.split(".")[0] == PACKAGE:
                yield alias.asname or PACKAGE, alias.name if alias.asname else PACKAGE
            elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _typed(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Parameters and variables that are of one class of torch wherever a file binds them, with that class's full
    name."""
    seen: dict[str, set[str | None]] = {}
    made = {
        id(target): _dotted(node.value.func, names)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
    }
    annotated = {id(node.target): node.annotation for node in nodes if isinstance(node, ast.AnnAssign)}
    for node in nodes:
        if isinstance(node, ast.arg):
            seen.setdefault(node.arg, set()).add(_class(node.annotation, names))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            called = made.get(id(node)) or ""
            kind = called if called.rpartition(".")[2][:1].isupper() else _class(annotated.get(id(node)), names)
            seen.setdefault(node.id, set()).add(kind)
    for name, classes in seen.items():
        (only,) = classes if len(classes) == 1 else (None,)
        if only and name not in names:
            yield name, only


def _class(annotation: ast.expr | None, names: dict[str, str]) -> str | None:
    if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
        annotation = annotation.left
    return _dotted(annotation, names) if annotation is not None else None


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    base = _dotted(node.value, names) if isinstance(node, ast.Attribute) else None
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else None


def contract(path: Path) -> dict[str, Any]:
    sources = Sources(path, PACKAGE)
    return {
        "version": sources.version().split("+")[0],
        "names": {name: sources.describe(name) for name in sorted({use.name for use in uses()})},
    }
