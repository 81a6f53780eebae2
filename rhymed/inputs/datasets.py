"""Dataset rows at the door: from `data`, or a dataset of `eval.datasets`, to rows that a run can use.

What comes out is checked: different rows, enough of them, each as `rhymed.inputs.columns` says, and every complaint names
the row's place (`train.jsonl, line 7`). Deterministic, so every process sees the same. Synchronous and slow (imports,
files, network): call it in a thread. Knows nothing of tokenizers, except that `data.overlong = "drop"` asks for one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rhymed.config import Config, Data, HeldOut
from rhymed.errors import DataError
from rhymed.inputs.columns import Columns, unused
from rhymed.inputs.rows import Row, prompt_id

log = logging.getLogger(__name__)

Placed = tuple[str, Row]
"""(where, row)."""


def load_rows(config: Config, data: Data | None = None) -> list[Row]:
    """All rows in their order, exact copies once; of `config.data`, or of the held-out dataset that is given.

    Raises `DataError` naming file and line, or `ConfigError`.
    """
    return [row for _, row in placed_rows(config, data)]


def placed_rows(config: Config, data: Data | None = None) -> list[Placed]:
    """`load_rows` with the place of each row."""
    data = data or config.data
    rows = _different(place(data), Columns(data), read_rows(config, data))
    if data.overlong == "drop":
        rows = _short_enough(config, data, rows)
    _enough(config, data, len(rows))
    return rows


def read_rows(config: Config, data: Data | None = None) -> Iterator[Placed]:
    """(where, row) one by one, checked and with its prompt, copies too."""
    data = data or config.data
    columns = Columns(data)
    for number, (where, given) in enumerate(islice(_open(config, data), data.limit or None)):
        row = columns.row(where, given)
        if number == 0 and (note := unused(row)):
            log.warning("%s: %s", where, note)
        yield where, row


def place(data: Data) -> str:
    """The dataset's name in messages."""
    if data.source == "reasoning_gym":
        return f"reasoning_gym {data.task}"
    if data.source == "hub":
        return " ".join(filter(None, (data.path, data.subset, data.split)))
    return str(Path(data.path).expanduser())


def _open(config: Config, data: Data) -> Iterator[tuple[str, Any]]:
    if data.source == "reasoning_gym":
        from rhymed.inputs.gym import read_gym

        return read_gym(data, None if isinstance(data, HeldOut) else config.run.seed)
    if data.source == "hub":
        from rhymed.inputs.hub import read_hub

        return read_hub(data, place(data))
    from rhymed.inputs.files import read_jsonl, read_parquet

    path = Path(data.path).expanduser()
    return read_jsonl(path) if data.source == "jsonl" else read_parquet(path)


def _different(name: str, columns: Columns, read: Iterator[Placed]) -> list[Placed]:
    """Exact copies once. Rows that ask the same and differ elsewhere are used, but the user should know."""
    rows: dict[str, Placed] = {}
    asked: dict[int, str] = {}  # by a hash of what is asked: the place
    copies, alike = Pairs(), Pairs()
    for where, row in read:
        identity = prompt_id(row)
        if identity in rows:
            copies.add(where, rows[identity][0])
            continue
        rows[identity] = where, row
        question = hash(columns.question(row))
        if question in asked:
            alike.add(where, asked[question])
        asked.setdefault(question, where)
    total = len(rows) + copies.count
    if copies.count:
        log.warning(
            "%s: %d of %d rows are exact copies of others and are used once: %s", name, copies.count, total, copies
        )
    if alike.count:
        log.warning(
            "%s: %d of %d rows ask the same as others but differ in other columns, and are used: %s",
            name, alike.count, total, alike,
        )  # fmt: skip
    return list(rows.values())


class Pairs:
    """How many rows repeat earlier ones, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first = ""

    def add(self, where: str, earlier: str) -> None:
        self.count += 1
        if not self._first:
            self._first = f"{where} repeats {earlier.rpartition(', ')[2]}"

    def __str__(self) -> str:
        return self._first


def _short_enough(config: Config, data: Data, rows: list[Placed]) -> list[Placed]:
    from rhymed.inputs.render import load_renderer

    limit = config.rollout.max_prompt_length
    lengths = load_renderer(config).lengths(rows)
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= limit]
    if len(kept) < len(rows):
        log.warning(
            "%s: %d of %d prompts are longer than rollout.max_prompt_length = %d and are left out",
            place(data), len(rows) - len(kept), len(rows), limit,
        )  # fmt: skip
    return kept


def _enough(config: Config, data: Data, rows: int) -> None:
    """Training takes a whole step's worth; of a held-out dataset any row will do."""
    short = f" of at most rollout.max_prompt_length = {config.rollout.max_prompt_length} tokens"
    which = short if data.overlong == "drop" else ""
    if not rows:
        raise DataError(f"{place(data)}: " + (f"no prompts{which}" if which else "the dataset is empty"))
    needed = config.rollout.prompts_per_step
    if rows < needed and not isinstance(data, HeldOut):
        raise DataError(
            f"{place(data)}: {rows} different rows{which}, but a step takes rollout.prompts_per_step = {needed};"
            " add rows or lower it"
        )
