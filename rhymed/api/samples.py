"""A run's samples as rows: those of `rhymed history export`, with the prompt's text and a column per scorer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rhymed.errors import DataError
from rhymed.history.export import plain, rows
from rhymed.history.folder import RunFolder, open_folder
from rhymed.history.show import find
from rhymed.inputs.rows import prompt_text
from rhymed.messages import SampleId
from rhymed.text import truncated
from rhymed_store.codec.tokenstats import NAMES

NAMED = 5  # prompts in an error


def sample_rows(
    folder: Path, step: int | None, limit: int | None, *, token_stats: bool = False
) -> list[dict[str, Any]]:
    """Raises `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = (row for prompt in run.browse.ids() for row in _of_prompt(run, prompt))
        wanted = found if step is None else (row for row in found if row["step"] == step)
        chosen = list(itertools.islice(wanted, limit))
        return _with_equal_columns([row | _stats(run, row) for row in chosen] if token_stats else chosen)


def history_rows(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Of the one prompt that is meant. Raises `DataError`, `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = find(run.browse, wanted)
        if len(found) > 1:
            texts = [f"{each} ({truncated(prompt_text(run.browse.row(each)), 40)!r})" for each in found[:NAMED]]
            raise DataError(f"{wanted!r} fits {len(found)} prompts: {', '.join(texts)}; name one by its id")
        return _with_equal_columns(list(_of_prompt(run, found[0])))


def _of_prompt(run: RunFolder, prompt: str) -> Iterator[dict[str, Any]]:
    text = prompt_text(run.browse.row(prompt))
    for row in rows(run, prompt):
        parts = json.loads(row.pop("parts") or "{}")
        yield {"prompt": text, **plain(row), **{f"reward/{name}": value for name, value in parts.items()}}


def _stats(run: RunFolder, row: dict[str, Any]) -> dict[str, Any]:
    """What training computed of each token of the sample in this row."""
    (found,) = run.browse.token_stats([SampleId(row["step"], row["prompt_id"], row["index"])])
    numbers = {} if found is None else {name: values.astype(float).tolist() for name, values in found.named().items()}
    stats = {"version": None if found is None else found.version} | {name: numbers.get(name) for name in NAMES}
    return {f"trainer/{name}": value for name, value in stats.items()}


def _with_equal_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """None where a row lacks a column of another one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
