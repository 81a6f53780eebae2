"""A dataset's rows, read and checked beforehand: one JSON line each, in the run's folder.

Reading a dataset takes libraries that are larger than a broker. `rhymed prepare` reads it where they are, and a
broker without them finds the rows here. A file's name says of which settings it holds the rows, so no broker takes
those of other settings; where there is none the dataset itself is read. Knows no network and no processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from rhymed import atomic
from rhymed.config import Config, Data
from rhymed.errors import DataError
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.rows import Row
from rhymed.run.folder import identity

log = logging.getLogger(__name__)


def file_of(config: Config, folder: Path, data: Data) -> Path:
    """Where the rows of this dataset are, or would be, in a run's folder."""
    told = json.dumps([identity(config), data.model_dump()], sort_keys=True, default=str)
    return folder / "rows" / f"{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.jsonl"


def prepare(config: Config, folder: Path, data: Data) -> int:
    """Read the dataset and write its rows, whole or not at all; how many. Raises `DataError`, `ConfigError`."""
    rows = load_rows(config, data)
    file = file_of(config, folder, data)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.new_file(file) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return len(rows)


def rows_of(config: Config, folder: Path, data: Data) -> list[Row]:
    """The prepared rows of this dataset, else the dataset's own. Raises `DataError`, `ConfigError`."""
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
