"""reasoning_gym: generated rows, and the way back from a row to the entry that its scorer wants.

A row is JSON, an entry is not: `freeze` and `thaw` keep what JSON would lose. Slow to import; knows no files.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any

from rhymed.config import Data
from rhymed.errors import ConfigError
from rhymed.inputs.rows import Row

SEED_STRIDE = 1_000_003
"""reasoning_gym makes entry i from seed + i: neighbouring seeds would share all prompts but one."""

HELD_OUT = 500_000
"""Seed of held-out entries: the same in every run, and between the entries of two training seeds."""

TUPLE, MAP = "__tuple__", "__map__"


def read_gym(data: Data, seed: int | None) -> Iterator[tuple[str, Any]]:
    """Entries as rows: `question` is called `prompt`; the rest is frozen, so that `gym_entry` gives it back.

    Without a seed: held-out entries.
    """
    first = HELD_OUT if seed is None else seed * SEED_STRIDE
    dataset = gym_dataset(data.task, {"seed": first, **data.args, "size": data.size})
    for number, entry in enumerate(dataset):
        where = f"reasoning_gym {data.task}, entry {number}"
        if number >= data.size:  # some tasks forget to stop
            return
        rest = {name: freeze(value) for name, value in entry.items() if name != "question"}
        yield where, {"prompt": entry["question"], **rest, "data_source": data.task}


def gym_entry(row: Row) -> dict[str, Any]:
    """The entry that the row was made of, as the task's own `score_answer` wants it."""
    rest = {name: thaw(value) for name, value in row.items() if name not in ("prompt", "data_source")}
    return {"question": row["prompt"], **rest}


def gym_dataset(task: str, args: dict[str, Any]) -> Any:
    """The official dataset object. Its `score_answer` depends on the arguments for some tasks, so give the same."""
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(f"reasoning_gym cannot be imported ({error}): pip install 'rhymed[data]'") from None
    if task not in DATASETS:
        close = difflib.get_close_matches(task, DATASETS, n=3)
        guess = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(DATASETS))}"
        raise ConfigError(f"data.task: reasoning_gym has no task {task!r}; {guess}")
    known = [field.name for field in dataclasses.fields(DATASETS[task][1])]
    for name in args:
        if name not in known:
            raise ConfigError(f"data.args: {task} has no argument {name!r}; known: {', '.join(sorted(known))}")
    try:
        if task == "composite":
            args = {**args, "datasets": [DatasetSpec(**spec) for spec in args.get("datasets", [])]}
        return reasoning_gym.create_dataset(task, **args)
    except Exception as error:
        raise ConfigError(f"data.args: {task} refuses them: {type(error).__name__}: {error}") from error


def freeze(value: Any) -> Any:
    """JSON that `thaw` turns into an equal value: tuples and keys that are not text matter to some scorers.

    (arc_agi scores its own solution 0.05 instead of 1.0 when the tuples of the board come back as lists.)
    """
    if isinstance(value, tuple):
        return {TUPLE: [freeze(item) for item in value]}
    if isinstance(value, list):
        return [freeze(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not value.keys() & {TUPLE, MAP}:
            return {key: freeze(item) for key, item in value.items()}
        return {MAP: [[freeze(key), freeze(item)] for key, item in value.items()]}
    return value


def thaw(value: Any) -> Any:
    """The inverse of `freeze`."""
    if isinstance(value, list):
        return [thaw(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {TUPLE}:
        return tuple(thaw(item) for item in value[TUPLE])
    if value.keys() == {MAP}:
        return {thaw(key): thaw(item) for key, item in value[MAP]}
    return {key: thaw(item) for key, item in value.items()}
