"""The run's store, opened read-only next to the process that writes it. Blocking: for one thread.

It is opened at the first request, and again after the file was replaced or a request failed, so the dashboard need
not be restarted. The catalog is kept until the store changes, and then longer the more it cost; prompt texts, which
never change, are cached up to a bound.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from rhymed.dashboard.data.catalog import Catalog
from rhymed.dashboard.data.samples import text_of
from rhymed.errors import ConfigError, StoreError
from rhymed.history.folder import RunFolder
from rhymed_store.inspect.browse import Browse
from rhymed_store.shards.browse import StoreReader
from rhymed_store.shards.folders import folders_of

FRESH_S = 2.0  # a catalog is kept at least this long
FRESH_PER_COST = 20  # and at least this many times the time that it took
CACHED_CHARACTERS = 16 << 20  # of prompt texts
LONGEST_TEXT = 20_000  # characters of a prompt, for lists and searches


class OpenStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader: StoreReader | None = None
        self._inodes: list[int] = []
        self._run: RunFolder | None = None
        self._catalog: Catalog | None = None
        self._changes = -1
        self._surveyed_at = self._cost = 0.0
        self._texts: dict[str, str] = {}
        self._characters = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[RunFolder]:
        """Raises `ConfigError` if there is no store on this machine, `StoreError` if it cannot be read."""
        try:
            yield self._opened()
        except StoreError:
            self.close()
            raise

    def _opened(self) -> RunFolder:
        store = self.folder / "store"
        try:
            inodes = [(folder / "data.mdb").stat().st_ino for folder in folders_of(store)]
        except OSError:
            self.close()
            raise ConfigError(
                f"there is no store in {self.folder} on this machine: run `rhymed view` on the machine of the store"
                " process to see samples"
            ) from None
        if self._run is None or inodes != self._inodes:
            self.close()
            self._reader, self._inodes = StoreReader(store), inodes
            self._run = RunFolder(self.folder, self._reader.browse)
        return self._run

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._run = self._catalog = None
        self._texts.clear()
        self._characters = 0

    def catalog(self) -> Catalog:
        with self.open():
            assert self._reader is not None, "it was opened"
            changes, now = self._reader.changes, time.monotonic()
            kept_s = max(FRESH_S, FRESH_PER_COST * self._cost)
            if self._catalog is None or (changes != self._changes and now > self._surveyed_at + kept_s):
                self._catalog, self._changes = Catalog(self._reader.browse.columns()), changes
                self._surveyed_at = time.monotonic()
                self._cost = self._surveyed_at - now
            return self._catalog

    def text(self, browse: Browse, prompt: str) -> str:
        """The prompt's text, or the beginning of a very long one."""
        if (text := self._texts.get(prompt)) is None:
            text = text_of(browse, prompt)[:LONGEST_TEXT]
            if self._characters < CACHED_CHARACTERS:
                self._texts[prompt] = text
                self._characters += len(text)
        return text
