"""The datasets of a script: which `load_dataset` a trainer's argument comes from, and what is done to its rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rhymed.migrate.entries import Item, Note, Put, Unknown
from rhymed.migrate.trl.script import Script, callee
from rhymed.migrate.values import run_name

FILES = ("json", "parquet")
"""Builders of `load_dataset` that read files which are read here, too."""

CHANGES = (
    "map",
    "filter",
    "select",
    "take",
    "train_test_split",
    "rename_column",
    "rename_columns",
    "cast",
    "concatenate_datasets",
    "interleave_datasets",
)
PLACEHOLDER = "rows.jsonl"


def script_rows(script: Script, trainer: dict[str, ast.expr]) -> Iterator[Item]:
    if "train_dataset" in trainer:
        yield from _training(script, trainer["train_dataset"])
    if "eval_dataset" in trainer:
        yield from _held_out(script, trainer["eval_dataset"])


def yaml_rows(given: dict[str, Any]) -> Iterator[Item]:
    """Of the settings of `trl grpo`."""
    name = given.get("dataset_name")
    if not name:
        yield from _unknown("train_dataset", "the source names no dataset_name")
        return
    split = given.get("dataset_train_split", "train")
    shared = {"path": str(name)} | ({"subset": str(given["dataset_config"])} if given.get("dataset_config") else {})
    yield from (Put(f"data.{key}", value) for key, value in {**shared, "split": str(split)}.items())
    if str(given.get("eval_strategy", "no")) != "no":
        test = str(given.get("dataset_test_split", "test"))
        yield Put("eval.datasets", [{"name": run_name(test), **shared, "split": test}])


def _training(script: Script, node: ast.expr) -> Iterator[Item]:
    found, changes = _loads(script, node)
    if len(found) != 1:
        why = "no load_dataset" if not found else f"{len(found)} calls of load_dataset"
        yield from _unknown("train_dataset", f"`{_brief(node)}` comes from {why}")
        return
    keys, unknown = _keys(script, found[0], node)
    yield from (Put(f"data.{key}", value, "the argument train_dataset") for key, value in keys.items())
    yield from (
        Note("train_dataset", "unknown", f"{key} is `{value.text}`: set data.{key}") for key, value in unknown.items()
    )
    if changes:
        how = 'dataset.to_json("rows.jsonl")'
        yield Note(
            "train_dataset",
            "unsupported",
            f"its rows are changed by {', '.join(changes)}: write them once with {how}, set data.path to that file;"
            " or see data.system, data.template and data.prompt_column",
        )


def _held_out(script: Script, node: ast.expr) -> Iterator[Item]:
    inner = script.follow(node)
    if isinstance(inner, ast.Constant) and inner.value is None:
        return
    found, _ = _loads(script, node)
    keys, unknown = _keys(script, found[0], node) if len(found) == 1 else ({}, {})
    if not keys or unknown:
        yield Note("eval_dataset", "unknown", f"it is `{_brief(node)}`: write [[eval.datasets]] for held-out rows")
        return
    yield Put("eval.datasets", [{"name": run_name(str(keys.get("split", "held-out"))), **keys}])


def _unknown(name: str, why: str) -> Iterator[Item]:
    yield Put("data.path", PLACEHOLDER, "to be set: a *.jsonl, a *.parquet or a hub id")
    yield Note(name, "unknown", f'{why}: write its rows with dataset.to_json("{PLACEHOLDER}"), and set data.path')


def _brief(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())[:60]


def _loads(script: Script, start: ast.expr) -> tuple[list[ast.Call], list[str]]:
    """Calls of load_dataset that the expression depends on, and of what changes rows; through names and functions."""
    loads: list[ast.Call] = []
    changes: list[str] = []
    todo: list[ast.AST] = [start]
    seen: set[str] = set()
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Call):
                name = callee(node)
                if name == "load_dataset" and node not in loads:
                    loads.append(node)
                elif name in CHANGES and f"{name}, line {node.lineno}" not in changes:
                    changes.append(f"{name}, line {node.lineno}")
            if isinstance(node, ast.Name) and node.id not in seen and isinstance(node.ctx, ast.Load):
                seen.add(node.id)
                todo += [value for value in script.assigned.get(node.id, []) if value is not None]
                if (function := script.functions.get(node.id)) and _loads_rows(function):
                    todo.append(function)
    return loads, changes


def _loads_rows(function: ast.AST) -> bool:
    """A function that is only given to `map` loads nothing."""
    return any(isinstance(node, ast.Call) and callee(node) == "load_dataset" for node in ast.walk(function))


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
    keys = {"path": "path", "name": "subset", "split": "split", "revision": "revision"}
    taken = {keys[name]: value for name, value in values.items() if name in keys and value is not None}
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
