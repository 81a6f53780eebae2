"""The tools, environments and rewards of a script: modules that have them alone, and the keys that name them.

An environment's process imports their file, as a scoring process imports that of a reward, so they are copied, too
(`copies`). What the script imports is imported by the module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhymed.start.migrate.entries import Item, Note, Put
from rhymed.start.migrate.trl.copies import Copied, module_text, undefined
from rhymed.start.migrate.trl.script import Script, callee

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
    return [*items, *_lacking(text, module, "tools" if tools is not None else "environment_factory")], text


def _lacking(text: str, module: Path, setting: str) -> Iterator[Note]:
    if missing := undefined(text):
        why = f"{module} uses {', '.join(missing)}, which only the script has when it runs: write that there"
        yield Note(setting, "unknown", why)


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


# The reward functions of a script: where each can be named, or the text of a module that has it alone.
#
# A scoring process imports the file of a reward. A training script would start to train there, so its functions are
# copied to a module of their own (`copies`).

THINK = r"<think>(?!.*<think>)(.*?)</think>.*"
"""TRL's think_format_reward."""

BUILT_IN: dict[str, dict[str, Any]] = {
    "accuracy_reward": {"scorer": "math", "args": {"column": "solution"}},
    "think_format_reward": {"scorer": "format", "name": "think_format", "args": {"pattern": THINK}},
}
"""Functions of trl.rewards -> our scorers that do the same."""


@dataclass
class Rewards:
    scorers: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    copied: Copied = field(default_factory=Copied)


def script_rewards(
    script: Script, trainer: dict[str, ast.expr], module: Path, weights: Any
) -> tuple[list[Item], str]:
    """`[reward]`, and the text of a module with functions that must be copied to the file `module`, or ""."""
    if "reward_funcs" not in trainer:
        return [_missing("the source names no reward_funcs")], ""
    found, node = Rewards(), script.follow(trainer["reward_funcs"])
    given = node.elts if isinstance(node, ast.List | ast.Tuple) else [trainer["reward_funcs"]]
    for number, each in enumerate(given):
        before = len(found.scorers)
        _add(found, script, each, module)
        found.scorers[before:] = (_weighted(scorer, weights, number) for scorer in found.scorers[before:])
    if not found.scorers:
        return [*found.notes, _missing("none of reward_funcs can be used")], ""
    text = module_text(script, found.copied, "Reward functions")
    return [*found.notes, *_lacking(text, module, "reward_funcs"), *_section(found.scorers)], text


def _weighted(scorer: dict[str, Any], weights: Any, number: int) -> dict[str, Any]:
    """With its place in `reward_weights`, if that is known."""
    if not isinstance(weights, list) or number >= len(weights):
        return scorer
    return {**scorer, "weight": float(weights[number])}


def named_rewards(names: Any, weights: Any) -> list[Item]:
    """`reward_funcs` of `trl grpo`: names of TRL's, or dotted import paths."""
    scorers: list[dict[str, Any]] = []
    for name in names if isinstance(names, list) else [names] if names else []:
        if name == "get_soft_overlong_punishment":
            scorers.append({"scorer": "length_penalty", "args": {"max_length": 1280, "buffer": 256}})
        elif name in BUILT_IN:
            scorers.append(BUILT_IN[name])
        else:
            module, _, function = str(name).rpartition(".")
            scorers.append({"scorer": f"{module or 'trl.rewards'}:{function}"})
    scorers = [_weighted(scorer, weights, number) for number, scorer in enumerate(scorers)]
    return list(_section(scorers)) if scorers else [_missing("the source names no reward_funcs")]


def _missing(why: str) -> Item:
    return Note("reward_funcs", "unknown", f"{why}: set reward.scorer, e.g. file.py:function")


def _section(scorers: list[dict[str, Any]]) -> Iterator[Item]:
    if len(scorers) == 1 and set(scorers[0]) == {"scorer"}:
        yield Put("reward.scorer", scorers[0]["scorer"], "unchanged: TRL's parameters are known here")
    else:
        yield Put("reward.scorers", scorers, "the reward is their sum, as in TRL; functions are unchanged")


def _add(found: Rewards, script: Script, node: ast.expr, module: Path) -> None:
    inner = script.follow(node)
    name = inner.id if isinstance(inner, ast.Name) else callee(inner) if isinstance(inner, ast.Call) else ""
    origin = imported(script, name)
    if isinstance(inner, ast.Constant):
        why = "a reward model is not called by name: call it in a function of yours"
        found.notes.append(Note(f"reward_funcs {inner.value!r}", "unsupported", why))
    elif origin == "trl.rewards" and (scorer := _trl(script, inner, name)):
        found.scorers.append(scorer)
    elif isinstance(inner, ast.Name) and origin:
        found.scorers.append({"scorer": f"{_place(script, origin)}:{name}"})
        if origin.partition(".")[0] == "trl":
            found.notes.append(
                Note(f"reward_funcs {name}", "different", f"it is imported from {origin}: install trl")
            )
    elif isinstance(inner, ast.Name) and name not in script.functions:
        found.notes.append(Note("reward_funcs", "unknown", f"`{name}` is not defined in the script: add its scorer"))
    else:
        alias = name if isinstance(inner, ast.Name) else f"reward_{len(found.copied.nodes) + 1}"
        found.copied.add(inner, alias)
        found.scorers.append({"scorer": f"{module}:{alias}"})


def _trl(script: Script, node: ast.expr, name: str) -> dict[str, Any] | None:
    """Our scorer for one of TRL's functions; None: there is none."""
    if name == "get_soft_overlong_punishment" and isinstance(node, ast.Call):
        values = {key: script.value(value) for key, value in script.keywords(node)}
        values |= dict(zip(("max_completion_len", "soft_punish_cache"), map(script.value, node.args), strict=False))
        pair = values.get("max_completion_len"), values.get("soft_punish_cache")
        if all(isinstance(one, int) for one in pair):
            return {"scorer": "length_penalty", "args": {"max_length": pair[0], "buffer": pair[1]}}
    return BUILT_IN.get(name) if isinstance(node, ast.Name) else None


def imported(script: Script, name: str) -> str:
    """The module that the name comes from; empty: none."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            module = f"{'.' * node.level}{node.module or ''}"
            return (
                "trl.rewards" if module == "trl" and name in (*BUILT_IN, "get_soft_overlong_punishment") else module
            )
    return ""


def _place(script: Script, module: str) -> str:
    """A file next to the script, or the module."""
    file = script.path.parent / f"{module.lstrip('.').replace('.', '/')}.py"
    return str(file) if file.is_file() else module
