"""The datasets of a script: which `load_dataset` gives a trainer's rows, or that the script itself makes them.

Rows are carried only if they are all rows of one `load_dataset`. Whatever else a script does to them, known here or
not, leaves `data.path` at a file that has to be written first: a run on other rows would say nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rhymed.start.migrate.entries import Item, Note, Put, Unknown, run_name
from rhymed.start.migrate.trl.script import Script, callee

FILES = ("json", "parquet")
"""Builders of `load_dataset` that read files which are read here, too."""
KEYS = {"path": "path", "name": "subset", "split": "split", "revision": "revision"}
"""Arguments of `load_dataset` and their keys in `[data]`."""
BESIDE = frozenset({"streaming", "num_proc", "trust_remote_code", "cache_dir", "token", "keep_in_memory"})
"""Arguments that do not change which rows there are."""


def script_rows(script: Script, trainer: dict[str, ast.expr], file: Path) -> Iterator[Item]:
    """`file`: for rows that only the script itself can make. It is not there yet, so no run begins without them."""
    if "train_dataset" in trainer:
        yield from _training(script, trainer["train_dataset"], file)
    if "eval_dataset" in trainer:
        yield from _held_out(script, trainer["eval_dataset"])


def yaml_rows(given: dict[str, Any], file: Path) -> Iterator[Item]:
    """Of the settings of `trl grpo`."""
    name = given.get("dataset_name")
    if not name:
        yield from _unknown("train_dataset", "the source names no dataset_name", file)
        return
    split = given.get("dataset_train_split", "train")
    shared = {"path": str(name)} | ({"subset": str(given["dataset_config"])} if given.get("dataset_config") else {})
    yield from (Put(f"data.{key}", value) for key, value in {**shared, "split": str(split)}.items())
    if str(given.get("eval_strategy", "no")) != "no":
        test = str(given.get("dataset_test_split", "test"))
        yield Put("eval.datasets", [{"name": run_name(test), **shared, "split": test}])


def _training(script: Script, node: ast.expr, file: Path) -> Iterator[Item]:
    load = _source(script, node)
    if load is None:
        yield from _unknown("train_dataset", f"`{_brief(node)}` is made or chosen by the script", file)
        return
    keys, unknown = _keys(script, load, node)
    yield from (Put(f"data.{key}", value, "the argument train_dataset") for key, value in keys.items())
    yield from (
        Note("train_dataset", "unknown", f"{key} is `{value.text}`: set data.{key}") for key, value in unknown.items()
    )


def _held_out(script: Script, node: ast.expr) -> Iterator[Item]:
    inner = script.follow(node)
    if isinstance(inner, ast.Constant) and inner.value is None:
        return
    load = _source(script, node)
    keys, unknown = _keys(script, load, node) if load is not None else ({}, {})
    if not keys or unknown:
        yield Note("eval_dataset", "unknown", f"it is `{_brief(node)}`: write [[eval.datasets]] for held-out rows")
        return
    yield Put("eval.datasets", [{"name": run_name(str(keys.get("split", "held-out"))), **keys}])


def _unknown(name: str, why: str, file: Path) -> Iterator[Item]:
    yield Put("data.path", str(file), "to be set: a *.jsonl, a *.parquet or a hub id")
    way = f'write its rows once, in the script, with dataset.to_json("{file}"), or set data.path to finished rows'
    yield Note(name, "unknown", f"{why}: {way}")


def _brief(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())[:60]


def _source(script: Script, node: ast.expr) -> ast.Call | None:
    """The `load_dataset` all of whose rows these are, in any order; None: rows that the script chooses or makes."""
    match inner := script.follow(node):
        case ast.Call() if callee(inner) == "load_dataset":
            return inner if _untouched(script, node) and _whole(script, inner) else None
        case ast.Call(func=ast.Name(id=name)) if isinstance(made := script.functions.get(name), ast.FunctionDef):
            ends = [one.value for one in ast.walk(made) if isinstance(one, ast.Return) and one.value is not None]
            return _source(script, ends[0]) if len(ends) == 1 else None
        case ast.Call(func=ast.Attribute(value=whole, attr="shuffle")):
            return _source(script, whole)
        case ast.Subscript(value=whole, slice=chosen) if not isinstance(chosen, ast.Slice):
            split = script.value(chosen)
            fine = isinstance(split, str | Unknown) and _untouched(script, node)
            return _source(script, whole) if fine else None
    return None


def _whole(script: Script, load: ast.Call) -> bool:
    """Whether `[data]` has a key for each argument that chooses rows."""
    given = {name: script.value(value) for name, value in script.keywords(load)}
    builder = script.value(load.args[0]) if load.args else given.get("path")
    if len(load.args) > 2 or given.keys() - KEYS.keys() - BESIDE - {"data_files"}:
        return False
    if builder in FILES:
        return str(given.get("split", "train")).isidentifier()
    return "data_files" not in given


def _untouched(script: Script, node: ast.expr) -> bool:
    """Whether nothing is put into what the name stands for, or removed from it."""
    if not isinstance(node, ast.Name):
        return True
    for statement in ast.walk(script.tree):
        places = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        for place in places:
            if isinstance(place, ast.Subscript) and any(
                isinstance(one, ast.Name) and one.id == node.id for one in ast.walk(place.value)
            ):
                return False
    return True


def _keys(script: Script, load: ast.Call, node: ast.expr) -> tuple[dict[str, Any], dict[str, Unknown]]:
    """Of `[data]`; and those that are not known."""
    named = dict(script.keywords(load))
    for name, argument in zip(("path", "name"), load.args, strict=False):
        named.setdefault(name, argument)
    values = {name: script.value(argument) for name, argument in named.items()}
    if values.get("path") in FILES and "data_files" in values:
        values = {"path": _one_file(values["data_files"])}
    elif "split" not in values:
        values["split"] = _chosen(script, load, node)
    taken = {KEYS[name]: value for name, value in values.items() if name in KEYS and value is not None}
    unknown = {key: value for key, value in taken.items() if isinstance(value, Unknown)}
    return {key: value for key, value in taken.items() if key not in unknown}, unknown


def _one_file(files: Any) -> Any:
    while isinstance(files, dict | list) and len(files) == 1:
        files = next(iter(files.values())) if isinstance(files, dict) else files[0]
    return str(PurePosixPath(files)) if isinstance(files, str) else Unknown(str(files))


def _chosen(script: Script, load: ast.Call, node: ast.expr) -> Any:
    """The split in `load_dataset(...)["train"]`, or in `dataset["train"]`."""
    for place in (*ast.walk(script.follow(node)), *ast.walk(node), *ast.walk(script.tree)):
        if isinstance(place, ast.Subscript) and script.follow(place.value) is load:
            return script.value(place.slice)
    return "train"
