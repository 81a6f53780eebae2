"""Reads JSONL and parquet files as (where, row), where `where` is e.g. `train.jsonl, line 7`. Does not check rows.

The error for a missing path names similar ones.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rhymed.core.errors import ConfigError, DataError

Read = Iterator[tuple[str, Any]]
"""(where, row), unchecked."""

WANTED = "a *.jsonl file is UTF-8 text with one JSON object per line (jq -c '.[]' makes it of an array)"

MAX_NAMES = 6
"""Of a folder's content, in an error."""


def similar(path: Path) -> str:
    """Ends an error about a missing path: a similar name, or the content of the nearest existing folder."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        path, folder = folder, folder.parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        names = []
    if close := difflib.get_close_matches(path.name, names, n=1):
        return f"; did you mean {folder / close[0]}?"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"; {folder.resolve()} contains {', '.join(names[:MAX_NAMES]) or 'nothing'}{more}"


def read_jsonl(path: Path) -> Read:
    _check_file(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield where, _parse(where, line)


def _parse(where: str, line: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise DataError(f"{where}: {constant} is not JSON: use null or leave the column out")

    try:
        return json.loads(line.decode(), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start}); {WANTED}") from None
    except json.JSONDecodeError as error:
        start = line.strip()[:60].decode(errors="replace")
        raise DataError(
            f"{where}: not JSON ({error.msg}, column {error.colno}), it begins: {start}; {WANTED}"
        ) from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    except ValueError:  # Python converts no more than 4,300 digits
        raise DataError(f"{where}: it has a number of thousands of digits: write it as text") from None


def read_parquet(path: Path) -> Read:
    _check_file(path)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("data.source = 'parquet' needs pyarrow: pip install 'rhymed[data]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a readable parquet file: {error} Download it again, or set data.source = 'jsonl'"
        ) from None


def _check_file(path: Path) -> None:
    """Raises `DataError` for a path that is not a file, or cannot be read."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: data.path must be one file (data.source = 'hub' reads a folder)")
    if path.exists() and not path.is_file():  # it is read several times, by several processes
        raise DataError(f"{path} is a pipe, a device or a socket: data.path must be a file; write its content to one")
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise DataError(f"{path}: No such file (data.path, relative to {Path.cwd()}){similar(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error} (data.path, relative to {Path.cwd()})") from None
