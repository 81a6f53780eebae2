"""The runs of a folder as the dashboard knows them: the list, and for each run that was opened its own page.

Owns the pages: a thread and an open store each, at most `MOST_OPEN`; the least recently used one is closed first. An
id stands for a run's name in addresses, where `/` separates parts and `,` separates ids.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.dashboard.auth import AccessControl
from rhymed.dashboard.data.source import Source
from rhymed.dashboard.data.thread import SourceThread
from rhymed.dashboard.routes import App
from rhymed.dashboard.snapshots import LiveRun
from rhymed.errors import ConfigError
from rhymed.several.find import find
from rhymed.several.listing import Lister, Listing, answers_of
from rhymed.several.rows import Files

log = logging.getLogger(__name__)

MOST_OPEN = 24
ESCAPES = str.maketrans({"/": "~", "~": "!7E", ",": "!2C", "!": "!21"})
FRESH_S = 2.0

LiveOf = Callable[[Path], tuple[LiveRun, Callable[[], None]]]
"""A run's folder -> the source of its snapshots while it is alive, and what closes that."""


@dataclass
class Page:
    app: App
    thread: SourceThread
    close: Callable[[], None]
    used: float = 0.0


@dataclass
class Registry:
    place: Path
    live_of: LiveOf
    access: AccessControl
    _folders: dict[str, Path] = field(default_factory=dict)
    _pages: dict[str, Page] = field(default_factory=dict)
    _listing: Listing | None = None
    _listed: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the list
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the pages

    def __post_init__(self) -> None:
        self._lister = Lister(self.place)

    async def listing(self, fresh_s: float = FRESH_S) -> Listing:
        """At most so many seconds old. Raises `ConfigError` if the folder is gone."""
        async with self._lock:
            if self._listing is None or time.monotonic() > self._listed + fresh_s:
                found, _ = await asyncio.to_thread(find, self.place)
                answers = await answers_of([one.folder for one in found])
                self._listing = await asyncio.to_thread(self._lister.read, answers)
                self._folders = {id_of(row.name): Path(row.folder) for row in self._listing.runs}
                self._listed = time.monotonic()
            return self._listing

    async def folder(self, id: str) -> Path:
        """Raises `ConfigError` for an id that is not in the list."""
        if id not in self._folders:
            await self.listing(0.0)
        if id not in self._folders:
            raise ConfigError(f"no run in {self.place} has the id {id}")
        return self._folders[id]

    async def files(self, ids: list[str]) -> dict[str, Files]:
        """What the files of these runs contain."""
        folders = {id: await self.folder(id) for id in ids}
        async with self._lock:
            return await asyncio.to_thread(lambda: {id: self._lister.files(at) for id, at in folders.items()})

    async def page(self, id: str) -> Page:
        """The run's own page, opened now or before. Raises `ConfigError`."""
        folder = await self.folder(id)
        async with self._opening:
            if id not in self._pages:
                self._pages[id] = await self._open(folder)
            page = self._pages[id]
            page.used = time.monotonic()
            while len(self._pages) > MOST_OPEN:
                await self._close(min(self._pages, key=lambda other: self._pages[other].used))
        return page

    async def _open(self, folder: Path) -> Page:
        live, close = self.live_of(folder)
        thread = SourceThread(Source(folder))
        page = Page(App(thread, live, self.access), thread, close)
        page.app.application.freeze()
        await page.app.application.startup()
        return page

    async def close(self) -> None:
        for id in list(self._pages):
            await self._close(id)

    async def _close(self, id: str) -> None:
        """An error in one part does not keep the others open."""
        page = self._pages.pop(id)
        application = page.app.application
        for part, end in (("shutdown", application.shutdown), ("cleanup", application.cleanup)):
            try:
                await end()
            except Exception:
                log.exception("the %s of the page of run %s failed", part, id)
        await asyncio.to_thread(page.thread.close)  # waits for the calls that the thread has
        page.close()


def id_of(name: str) -> str:
    """Another one for each name."""
    return name.translate(ESCAPES)
