"""Where imported history comes from: a run's folder, or a parquet file that `rhymed history export` wrote.

Both yield prompt after prompt, all of its samples at once, as dictionaries with the keys of the file's schema.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from rhymed.errors import ConfigError, DataError
from rhymed.history.export import META, arrow, rows, schema
from rhymed.history.folder import RunFolder, open_folder
from rhymed.inputs.tokenizer import Vocabulary

Sample = dict[str, Any]
UNUSED = ("text", "drafted", "parts", "calls")
"""Columns that an import does not need."""
LATER = ("turns", "earned", "forks")
"""Columns that files of earlier releases lack."""


class Origin(Protocol):
    vocabulary: Vocabulary

    def prompts(self) -> Iterator[list[Sample]]: ...


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Origin]:
    """Raises `ConfigError` for a path that is neither, `DataError` for another parquet file."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise ConfigError(f"{path}: name a run's folder, or a .parquet file that `rhymed history export` wrote")
        yield _FileSource(path)
        return
    with open_folder(path) as folder:
        yield _RunSource(folder)


class _RunSource:
    def __init__(self, folder: RunFolder) -> None:
        self.vocabulary, self._browse = folder.vocabulary, folder.browse
        folder.decode = None  # the text is not imported
        self._folder = folder

    def prompts(self) -> Iterator[list[Sample]]:
        for prompt in self._browse.ids():
            yield rows(self._folder, prompt)


class _FileSource:
    def __init__(self, path: Path) -> None:
        self._path, pa = path, arrow()
        try:
            file_schema = pa.parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable parquet file: {error}") from None
        needed = [name for name in schema().names if name not in (*UNUSED, *LATER)]
        if missing := [name for name in needed if name not in file_schema.names]:
            raise DataError(
                f"{path} is not a file of `rhymed history export`: no column {', '.join(missing)}; its columns:"
                f" {', '.join(file_schema.names)}"
            )
        self._columns = [*needed, *(name for name in LATER if name in file_schema.names)]
        about = json.loads((file_schema.metadata or {}).get(META, b"{}"))
        self.vocabulary = Vocabulary(about.get("size"), about.get("fingerprint", ""))

    def prompts(self) -> Iterator[list[Sample]]:
        before = ""
        for prompt, samples in groupby(self._rows(), key=lambda row: str(row["prompt_id"])):
            if prompt <= before:
                raise DataError(f"{self._path}: its rows are not in order of prompt_id, as an export writes them")
            before = prompt
            yield list(samples)

    def _rows(self) -> Iterator[Sample]:
        pa = arrow()
        try:
            with pa.parquet.ParquetFile(self._path) as file:
                for batch in file.iter_batches(batch_size=256, columns=self._columns):
                    yield from _unpack(batch)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path}: not a readable parquet file: {error}") from None


def _unpack(batch: Any) -> list[Sample]:
    """Its rows, with token ids as arrays: as lists they would take twenty times the memory and time."""
    arrays = ("prompt_tokens", "tokens")
    found: list[Sample] = batch.select([name for name in batch.schema.names if name not in arrays]).to_pylist()
    for name in arrays:
        for row, tokens in zip(found, batch.column(name), strict=True):
            row[name] = tokens.values.to_numpy() if tokens.is_valid else ()
    return found
