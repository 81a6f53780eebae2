"""Rows of a dataset that were loaded and checked in advance: a file of JSON lines in the run's folder.

Loading a dataset needs libraries that are larger than a broker. `rhymed prepare` loads it where they are installed,
and a broker without them reads this file. The file's name is a digest of the settings, so rows of other settings are
never used; without a file, the dataset itself is loaded. Knows no network and no processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from rhymed import atomic
from rhymed.config import Config, Dataset
from rhymed.errors import DataError
from rhymed.inputs.datasets import Lengths, load_rows, placed_rows
from rhymed.inputs.rows import Row
from rhymed.run.folder import identity

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
    with atomic.new_file(file) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
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
