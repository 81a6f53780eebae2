"""The run's store as the dashboard has it open: read-only, beside whoever writes it. Blocking: for one thread.

Opened when it is first asked for, and again when the file is another one or an answer failed, so that nobody has to
start the dashboard anew. Overviews are kept until the store changes, and then for a while longer the more they cost;
texts of prompts, which never change, up to a bound.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from rhymed.dashboard.data.catalog import Catalog
from rhymed.dashboard.data.samples import asked
from rhymed.errors import ConfigError, StoreError
from rhymed.history.folder import RunFolder
from rhymed_store.database.tables import Reader
from rhymed_store.inspect.browse import Browse
from rhymed_store.inspect.columns import survey

FRESH_S = 2.0  # an overview may be so old
PRICE = 20  # and so many times as old as it took to make
MOST_TEXT = 16 << 20  # characters of prompts that are kept
LONGEST_TEXT = 20_000  # of a prompt, for lists and searches


class Stored:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader: Reader | None = None
        self._inode = 0
        self._run: RunFolder | None = None
        self._catalog: Catalog | None = None
        self._changes = -1
        self._made = self._cost = 0.0
        self._texts: dict[str, str] = {}
        self._characters = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[RunFolder]:
        """Raises `ConfigError` where there is no store on this machine, `StoreError` where it cannot be read."""
        try:
            yield self._opened()
        except StoreError:
            self.close()
            raise

    def _opened(self) -> RunFolder:
        file = self.folder / "store" / "data.mdb"
        try:
            inode = file.stat().st_ino
        except OSError:
            self.close()
            raise ConfigError(
                f"there is no store in {self.folder} on this machine: samples can be seen where the store process"
                " runs, with `rhymed view` in the run's folder there"
            ) from None
        if self._run is None or inode != self._inode:
            self.close()
            self._reader, self._inode = Reader(file.parent), inode
            self._run = RunFolder(self.folder, Browse(self._reader))
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
            kept_s = max(FRESH_S, PRICE * self._cost)
            if self._catalog is None or (changes != self._changes and now > self._made + kept_s):
                self._catalog, self._changes = Catalog(survey(self._reader)), changes
                self._made = time.monotonic()
                self._cost = self._made - now
            return self._catalog

    def text(self, browse: Browse, prompt: str) -> str:
        """What the prompt asks; the beginning of a very long one."""
        found = self._texts.get(prompt)
        if found is None:
            found = asked(browse, prompt)[:LONGEST_TEXT]
            if self._characters < MOST_TEXT:
                self._texts[prompt] = found
                self._characters += len(found)
        return found
