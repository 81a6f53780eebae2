"""Loads and checks the rows of `data`, or of a dataset in `eval.datasets`.

The rows are distinct (copies get numbers), enough, and valid (`rhymed.inputs.columns`); errors name a row's place
(`train.jsonl, line 7`).
Deterministic, so that all processes see the same rows. Blocking and slow (imports, files, network): call it in a
thread. Needs a tokenizer only for `data.overlong = "drop"`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rhymed.core.config import Config, Data, Dataset, HeldOut, Rollout
from rhymed.core.errors import DataError
from rhymed.inputs.columns import Columns, ignored
from rhymed.inputs.rows import Row, as_json, prompt_id

log = logging.getLogger(__name__)

Placed = tuple[str, Row]
"""(where, row)."""

VISIT = "rhymed_visit"
"""Column of the second, third … copy of a row: its number, from 1; columns of users cannot have this name."""

Lengths = Callable[[Sequence[Placed]], list[int]]
"""Prompt tokens of each row. Whoever knows what tools add to a prompt brings it; else they are as rendered here."""


def load_rows(config: Config, data: Dataset | None = None) -> list[Row]:
    """All rows in order; of `data`, by default `config.data`. Raises `DataError` that names file and line, or
    `ConfigError`."""
    return [row for _, row in placed_rows(config, data)]


def placed_rows(config: Config, data: Dataset | None = None, lengths: Lengths | None = None) -> list[Placed]:
    """`load_rows` with the place of each row."""
    data = data or config.data
    rows = [row for part in data.parts for row in _rows(config, part, lengths)]
    if len(data.parts) > 1:
        _check_shared(rows)
    _check_count(config.rollout, data, len(rows))
    return rows


def _rows(config: Config, data: Dataset, lengths: Lengths | None) -> list[Placed]:
    """Of one dataset, at least one."""
    rows = _visits(place(data), read_rows(config, data))
    if data.overlong == "drop":
        rows = _without_overlong(config, data, rows, lengths)
    if not rows:
        which = _short(config.rollout, data)
        raise DataError(f"{place(data)}: " + (f"no prompts{which}" if which else "the dataset is empty"))
    for sentence in ignored(data, [row for _, row in rows], _answers(config)):
        log.warning("%s: %s", place(data), sentence)
    return rows


def _answers(config: Config) -> set[str]:
    """Columns that are read as answers: references of scorers, what SFT learns, and what a teacher is shown."""
    references = {str(scorer.args.get("column", "")) for scorer in config.reward.all}
    learned = {config.data.answer_column or "completion"} if config.rollout.engine == "dataset" else set[str]()
    return references | learned | {config.trainer.teacher.demonstration}


def _check_shared(rows: list[Placed]) -> None:
    """A prompt belongs to one dataset: its weight would be unclear, and no step may have it twice."""
    places: dict[str, str] = {}
    for where, row in rows:
        identity = prompt_id(row)
        if identity in places:  # within a dataset, copies have numbers
            raise DataError(f"{where}: another of data.datasets has the same row ({places[identity]}): leave one out")
        places[identity] = where


def read_rows(config: Config, data: Dataset | None = None) -> Iterator[Placed]:
    """(where, row) one by one, each checked and with its prompt, including copies. Of one dataset."""
    data = data or config.data
    columns = Columns(data)
    for where, value in islice(_open(data, config.run.seed), data.limit or None):
        yield where, columns.row(where, value)


def place(data: Dataset) -> str:
    """The dataset's name in messages."""
    if isinstance(data, Data) and data.datasets:
        return ", ".join(map(place, data.datasets))
    if data.source == "reasoning_gym":
        return f"reasoning_gym {data.task}"
    if data.source == "hub":
        return " ".join(filter(None, (data.path, data.subset, data.split)))
    return data.path if "://" in data.path else str(Path(data.path).expanduser())


def _open(data: Dataset, seed: int) -> Iterator[tuple[str, Any]]:
    if data.source == "reasoning_gym":
        from rhymed.inputs.gym import read_gym

        return read_gym(data, None if isinstance(data, HeldOut) else seed)
    if "://" in data.path:
        raise DataError(f"data.path = {data.path!r}: nothing is read from an address: download the file, and name it")
    if data.source == "hub":
        from rhymed.inputs.hub import read_hub

        return ((where, as_json(value)) for where, value in read_hub(data, place(data)))
    from rhymed.inputs.files import read_jsonl, read_parquet

    path = Path(data.path).expanduser()
    if data.source == "jsonl":
        return read_jsonl(path)
    return ((where, as_json(value)) for where, value in read_parquet(path))


def _visits(name: str, read: Iterator[Placed]) -> list[Placed]:
    """A row that occurs n times is n prompts: all but the first have their number in the column `VISIT`."""
    rows: dict[str, Placed] = {}
    visits: Counter[str] = Counter()
    copies: list[str] = []
    for where, row in read:
        if VISIT in row:
            raise DataError(
                f"{where}: column {VISIT!r} is reserved for the numbers of copies: give yours another name"
            )
        identity = prompt_id(row)
        if identity not in rows:
            rows[identity] = where, row
            continue
        copies.append(f"{where} repeats {rows[identity][0].rpartition(', ')[2]}")
        visits[identity] += 1
        visit = {**row, VISIT: visits[identity]}
        rows[prompt_id(visit)] = where, visit
    if copies:
        log.warning(
            "%s: %d of %d rows are exact copies of others; each counts as a prompt: %s",
            name, len(copies), len(rows), copies[0],
        )  # fmt: skip
    return list(rows.values())


def _without_overlong(config: Config, data: Dataset, rows: list[Placed], lengths: Lengths | None) -> list[Placed]:
    from rhymed.inputs.render import load_renderer

    limit = config.rollout.max_prompt_length
    measured = lengths(rows) if lengths else load_renderer(config).lengths(rows)
    kept = [row for row, length in zip(rows, measured, strict=True) if length <= limit]
    if len(kept) < len(rows):
        log.warning(
            "%s: %d of %d prompts are longer than rollout.max_prompt_length = %d and are left out",
            place(data), len(rows) - len(kept), len(rows), limit,
        )  # fmt: skip
    return kept


def _check_count(rollout: Rollout, data: Dataset, rows: int) -> None:
    """Training needs the prompts of a whole step."""
    which, needed = _short(rollout, data), rollout.prompts_per_step
    if rows < needed and isinstance(data, Data):
        raise DataError(
            f"{place(data)}: {rows} rows{which}, but a step needs rollout.prompts_per_step = {needed};"
            " add rows or lower it"
        )


def _short(rollout: Rollout, data: Dataset) -> str:
    """Which prompts are used, where not all are."""
    limit = f" of at most rollout.max_prompt_length = {rollout.max_prompt_length} tokens"
    return limit if data.overlong == "drop" else ""
