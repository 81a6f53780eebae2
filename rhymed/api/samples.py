"""A run's samples as rows: those of `rhymed history export`, with the prompt's text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rhymed.errors import DataError
from rhymed.history.export import plain, rows
from rhymed.history.folder import RunFolder, open_folder, prompt_text
from rhymed.history.show import find
from rhymed.text import truncated

NAMED = 5  # prompts in an error


def sample_rows(folder: Path, step: int | None, limit: int | None) -> list[dict[str, Any]]:
    """Raises `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = (row for prompt in run.browse.ids() for row in _of_prompt(run, prompt))
        wanted = found if step is None else (row for row in found if row["step"] == step)
        return list(itertools.islice(wanted, limit))


def history_rows(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Of the one prompt that is meant. Raises `DataError`, `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = find(run.browse, wanted)
        if len(found) > 1:
            texts = [f"{each} ({truncated(prompt_text(run.browse.row(each)), 40)!r})" for each in found[:NAMED]]
            raise DataError(f"{wanted!r} fits {len(found)} prompts: {', '.join(texts)}; name one by its id")
        return list(_of_prompt(run, found[0]))


def _of_prompt(run: RunFolder, prompt: str) -> Iterator[dict[str, Any]]:
    text = prompt_text(run.browse.row(prompt))
    for row in rows(run, prompt):
        yield {"prompt": text, **plain(row)}
