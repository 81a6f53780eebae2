"""A judge's answers in a file of the run's folder, so that no request is made twice: after a restart, or for the same
response again.

All reward workers that see the folder share the file, also those of other machines: so it has no write-ahead log,
which needs shared memory. The oldest answers go when there are more than `most`. A cache that
cannot be read or written is reported once and left out: it costs requests, and never a score.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

BUSY_S = 5.0  # to wait for another worker's write
TABLE = "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, text TEXT)"
OLDEST = "DELETE FROM answers WHERE number <= (SELECT number FROM answers ORDER BY number DESC LIMIT 1 OFFSET ?)"

Result = TypeVar("Result")


class Cache:
    """Used from one event loop; the file is used from a thread of its own."""

    def __init__(self, file: Path, most: int) -> None:
        self._file, self._most = file, most
        self._thread = ThreadPoolExecutor(1, "judge-cache")
        self._database: sqlite3.Connection | None = None
        self._broken = False
        self._unwritten: dict[bytes, str] = {}
        self._writing: asyncio.Task[None] | None = None

    async def get(self, key: bytes) -> str | None:
        return self._unwritten.get(key) or await self._run(self._get, key)

    def put(self, key: bytes, text: str) -> None:
        """Returns at once. What came meanwhile is written together: a commit waits for the disk."""
        self._unwritten[key] = text
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._unwritten:
            answers, self._unwritten = self._unwritten, {}
            await self._run(self._put, answers)

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        await asyncio.to_thread(self._close)

    async def _run(self, work: Callable[..., Result], *given: object) -> Result | None:
        if self._broken:
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)
        except (sqlite3.Error, OSError) as error:
            if not self._broken:
                log.warning("answers of the judge are not kept, since %s cannot be used: %s", self._file, error)
            self._broken = True
            return None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._file, BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(TABLE)
        return self._database

    def _get(self, key: bytes) -> str | None:
        row = self._open().execute("SELECT text FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def _put(self, answers: Mapping[bytes, str]) -> None:
        plain = [(key, text.encode(errors="replace").decode()) for key, text in answers.items()]
        with self._open() as database:  # commits, or takes back
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT OR REPLACE INTO answers (key, text) VALUES (?, ?)", plain)
            database.execute(OLDEST, (self._most,))

    def _close(self) -> None:
        self._thread.shutdown()
        if self._database is not None:
            self._database.close()
