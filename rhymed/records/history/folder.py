"""A run's folder opened for reading: its store, its configuration and its tokenizer.

Works next to a living run, and on a folder that was moved: everything is found from the folder itself. Without a
tokenizer there is no text, and `missing` says why; that is never an error by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.run.folder import near
from rhymed.inputs.tokenizer import Vocabulary, read_vocabulary
from rhymed_store.browse import Browse, StoreReader
from rhymed_store.database.tables import owner

Decode = Callable[[Sequence[Any]], list[str]]


@dataclass
class RunFolder:
    """`missing`: why there is no text, known after the first use of `decode`."""

    folder: Path
    browse: Browse
    missing: str = ""

    @cached_property
    def config(self) -> Config | None:
        """None where it is missing or cannot be read."""
        try:
            return load_run(self.folder)
        except ConfigError:
            return None

    @cached_property
    def name(self) -> str:
        return self.config.run.name if self.config else self.folder.resolve().name

    @cached_property
    def tokenizer(self) -> Path | None:
        """The file tokenizer.json of the newest checkpoint, else of the model."""
        if self.config is None:
            kept = sorted(self.folder.glob("checkpoints/*/tokenizer.json"), key=lambda file: file.stat().st_mtime)
            if not kept:
                self.missing = f"{self.folder} has no config.json that this release reads, so its model is unknown"
            return kept[-1] if kept else None
        from rhymed.inputs.models import tokenizer_of_run

        try:
            return tokenizer_of_run(self.folder, self.config)
        except (RhymedError, OSError) as error:
            self.missing = str(error)
            return None

    @cached_property
    def decode(self) -> Decode | None:
        """Arrays of token ids to text, special tokens included; None: see `missing`."""
        if self.tokenizer is None:
            return None
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        return lambda arrays: list(
            tokenizer.decode_batch([array.tolist() for array in arrays], skip_special_tokens=False)
        )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        if self.tokenizer is not None:
            return read_vocabulary(self.tokenizer)
        traced = self.config is not None and self.config.rollout.engine == "trace"
        return Vocabulary(size=self.config.trace.vocabulary if self.config and traced else None)


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[RunFolder]:
    """Raises `ConfigError` where there is no store, `StoreError` where it cannot be read."""
    try:
        folder, store = find(folder)
    except PermissionError:
        raise ConfigError(f"{folder} belongs to {owner(folder)}, and you may not read it") from None
    with StoreReader(store) as reader:
        yield RunFolder(folder, reader.browse)


def find(folder: Path) -> tuple[Path, Path]:
    """The run's folder and its store, from either of the two."""
    store = folder / "store"
    if not folder.exists():
        raise ConfigError(f"{folder} does not exist: name a run's folder, e.g. runs/quickstart{near(folder)}")
    if (folder / "data.mdb").is_file():
        return folder.resolve().parent, folder
    if not store.is_dir():
        raise ConfigError(f"{folder} has no store in it: name a run's folder, e.g. runs/quickstart{near(folder)}")
    return folder, store
