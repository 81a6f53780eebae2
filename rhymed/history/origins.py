"""Where imported history comes from: a run's folder, or a parquet file that `rhymed history export` wrote.

Both give one prompt after another, all of its samples at once, as dictionaries with the keys of the file's schema.
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


class Past(Protocol):
    vocabulary: Vocabulary

    def prompts(self) -> Iterator[list[Sample]]: ...


@contextlib.contextmanager
def open_past(path: Path) -> Iterator[Past]:
    """Raises `ConfigError` for what is neither of the two, `DataError` for another parquet file."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise ConfigError(f"{path}: name a run's folder, or a .parquet file that `rhymed history export` wrote")
        yield _File(path)
        return
    with open_folder(path) as folder:
        yield _Folder(folder)


class _Folder:
    def __init__(self, folder: RunFolder) -> None:
        self.vocabulary, self._browse = folder.vocabulary, folder.browse
        folder.decode = None  # nobody needs the text
        self._folder = folder

    def prompts(self) -> Iterator[list[Sample]]:
        for prompt in self._browse.ids():
            yield rows(self._folder, prompt)


class _File:
    def __init__(self, path: Path) -> None:
        self._path, pa = path, arrow()
        try:
            found = pa.parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable parquet file: {error}") from None
        needed = [name for name in schema().names if name not in ("text", "drafted")]
        if missing := [name for name in needed if name not in found.names]:
            raise DataError(
                f"{path} is not a file of `rhymed history export`: no column {', '.join(missing)}; its columns:"
                f" {', '.join(found.names)}"
            )
        self._columns = needed
        about = json.loads((found.metadata or {}).get(META, b"{}"))
        self.vocabulary = Vocabulary(about.get("size"), about.get("fingerprint", ""))

    def prompts(self) -> Iterator[list[Sample]]:
        before = ""
        for prompt, samples in groupby(self._rows(), key=lambda row: str(row["prompt_id"])):
            if prompt <= before:
                raise DataError(f"{self._path}: its rows are not in order of prompt_id, as they were written")
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
