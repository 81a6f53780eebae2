"""Rows of a dataset that were loaded and checked in advance: a file of JSON lines in the run's folder.

Loading a dataset needs libraries that are larger than a broker. `rhymed prepare` loads it where they are installed,
and a broker without them reads this file. The file's name is a digest of the settings, so rows of other settings are
never used; without a file, the dataset itself is loaded. Next to it is a digest of the run's rows, with or without
such a file: they stay the same until its end. Knows no network and no processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from rhymed.core import atomic
from rhymed.core.config import Config, Dataset
from rhymed.core.errors import DataError, RunMismatch
from rhymed.core.run.folder import identity
from rhymed.core.text import counted
from rhymed.inputs.datasets import Lengths, load_rows, placed_rows
from rhymed.inputs.rows import Row, prompt_id

log = logging.getLogger(__name__)


def file_of(config: Config, folder: Path, data: Dataset) -> Path:
    """The file of this dataset's rows in a run's folder, whether it exists or not."""
    settings = json.dumps([identity(config), data.model_dump()], sort_keys=True, default=str)
    return folder / "rows" / f"{hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()}.jsonl"


def prepare(config: Config, folder: Path, data: Dataset, lengths: Lengths | None = None) -> int:
    """Load the dataset and write its rows; returns their number. Raises `DataError`, `ConfigError`.

    `lengths`: of prompts to which tools add words, for `data.overlong = "drop"`.
    """
    rows = [row for _, row in placed_rows(config, data, lengths)]
    file = file_of(config, folder, data)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.new_file(file) as part:
        with part.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
        atomic.sync(part)
    return len(rows)


def rows_of(config: Config, folder: Path, data: Dataset) -> list[Row]:
    """The prepared rows of this dataset, else those of the dataset itself. Raises `DataError`, `ConfigError`."""
    file = file_of(config, folder, data)
    try:
        with file.open(encoding="utf-8") as stream:
            rows = [json.loads(line) for line in stream]
    except FileNotFoundError:
        return load_rows(config, data)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read ({error}): remove it, or write it again with `rhymed prepare`"
        ) from None
    log.info("%d rows, prepared in %s", len(rows), file)
    return rows


def kept_rows(config: Config, folder: Path, data: Dataset) -> list[Row]:
    """`rows_of`, which are the run's from the first call on. Raises `RunMismatch` if they are others now."""
    rows = rows_of(config, folder, data)
    digest = hashlib.blake2b("".join(map(prompt_id, rows)).encode(), digest_size=16).hexdigest()
    file, now = file_of(config, folder, data).with_suffix(".digest"), f"{len(rows)} {digest}"
    try:
        before = file.read_text()
    except FileNotFoundError:
        before = ""
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): remove it, and it is written again") from None
    if not before:
        try:
            atomic.make_folder(file.parent)
            atomic.write(file, now, synced=True)
        except OSError as error:  # a full disk, which other writes report
            log.warning("%s cannot be written: %s", file, error)
    elif before != now:
        had, which = before.partition(" ")[0], f"data.path = {data.path!r}" if data.path else "the dataset"
        raise RunMismatch(
            f"{folder} belongs to another run: {which} has other rows than it began with"
            f" ({counted(len(rows), 'row')} now, {had} then). Put the old rows back to resume it, or start a new run"
            " with another run.name"
        )
    return rows
