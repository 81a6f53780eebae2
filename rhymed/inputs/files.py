"""Reads JSONL and parquet files as (where, row), where `where` is e.g. `train.jsonl, line 7`. Does not check rows.

The error for a file of another format names that format; the error for a missing path names similar ones.
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

RECODE = "write it as UTF-8 first (iconv -f UTF-16 -t UTF-8)"

MAGIC = {
    b"PAR1": "a parquet file: set data.source to 'parquet'",
    b"\x1f\x8b": "compressed with gzip: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"ARROW1": "an Arrow file: convert it to parquet",
    b"\xff\xfe": f"UTF-16 text: {RECODE}",
    b"\xfe\xff": f"UTF-16 text: {RECODE}",
    b"version https://git-lfs": "a Git LFS pointer, not the data: run `git lfs pull` where it came from",
}
"""First bytes of files that are often named by mistake, and what to do about them."""

FROM_CSV = "pandas.read_csv(PATH).to_json(OUT, orient='records', lines=True)"

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
    _check_format(path, MAGIC)
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
        raise DataError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start}); *.jsonl is text, one object per line"
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg}, column {error.colno}){_guess(where, line)}") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    except ValueError:  # Python converts no more than 4,300 digits
        raise DataError(f"{where}: it has a number of thousands of digits: write it as text") from None


def _guess(where: str, line: bytes) -> str:
    """What a line that is not JSON may be, and what to do."""
    start = line.strip()[:60].decode(errors="replace")
    if not where.endswith(", line 1"):
        return f"; the line begins: {start}"
    if start[:1] == "[":
        return ": this looks like one JSON array; write one object per line (jq -c '.[]' does it)"
    if start == "{":
        return ": this looks like JSON over several lines; write one object per line (jq -c . does it)"
    if "," in start and start[:1] != "{":
        return f": this looks like CSV ({start}); write one object per line, e.g. with {FROM_CSV}"
    return f"; the line begins: {start}"


def read_parquet(path: Path) -> Read:
    _check_format(path, {magic: text for magic, text in MAGIC.items() if magic != b"PAR1"})
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
        with path.open("rb") as opened:
            text = opened.read(64).lstrip()[:1] in (b"{", b"[")
        hint = "it looks like JSON: set data.source to 'jsonl'" if text else f"{error} Download it again"
        raise DataError(f"{path}: not a readable parquet file: {hint}") from None


def _check_format(path: Path, foreign: dict[bytes, str]) -> None:
    """Raises `DataError` for a path that is not a file, or a file that starts like one of another format."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: data.path must be one file (data.source = 'hub' reads a folder)")
    if path.exists() and not path.is_file():  # it is read several times, by several processes
        raise DataError(f"{path} is a pipe, a device or a socket: data.path must be a file; write its content to one")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise DataError(f"{path}: No such file (data.path, relative to {Path.cwd()}){similar(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error} (data.path, relative to {Path.cwd()})") from None
    for magic, text in foreign.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {text}")
