"""The store's process. Queries and compression run on a thread pool, writes on a thread of their own.

`Done` as the answer to a write means that it is durable as configured. Owns the database's folder while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import lmdb
import msgspec

from rhymed.core import messages
from rhymed.core.config import Store
from rhymed.core.errors import FilesLost, Overloaded, PeerGone, StoreFull, Unusable
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.state import has_worked
from rhymed.core.service.retry import FULL_S
from rhymed.core.service.service import Service
from rhymed.core.wire.sockets import DONE, Parcel, Server
from rhymed_store.database.commit import Writer
from rhymed_store.database.prepare import prepare
from rhymed_store.database.reads import Reads
from rhymed_store.database.sessions import read_sessions
from rhymed_store.database.transactions import FILE, Batch, Database
from rhymed_store.database.writes import Writes

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_BYTES = 2 << 30  # of samples waiting in memory; more are refused
PRESSURE_BYTES = 4 << 20  # of samples underway: beyond this they arrive faster than workers decode
PRESSURE_LEVEL = -5  # zstd: twice as fast as level 1, for half again the size
WARN_S = 60.0  # between log lines about it
LOOK_S = 1.0  # between looks at the name of the database's file
SYNC_S = 1.0  # durability = "async": what is written in so many seconds may be lost in a power failure, or damaged
THREADS = 2


class StoreService(Service):
    """Serves `layout.store` from the database in `layout.database`."""

    def __init__(self, settings: Store, layout: RunLayout) -> None:
        super().__init__("store")
        self._settings, self._layout = settings, layout
        self.database: Database | None = None  # while it is open; so is the server
        self.server: Server | None = None

    async def open(self) -> None:
        config, layout, pool = self._settings, self._layout, ThreadPoolExecutor(THREADS, "store")
        durable = config.durability == "sync"
        self.closing.callback(pool.shutdown, wait=False)  # the database is still being opened, which may take long
        opening = partial(_database, layout, config, durable=durable)
        self.database = database = await asyncio.get_running_loop().run_in_executor(pool, opening)
        self.closing.push_async_callback(self._end, database)
        self.closing.callback(pool.shutdown)
        writer = Writer(database.commit)
        self.closing.push_async_callback(asyncio.to_thread, writer.close)  # everything received, acknowledged or not
        requests = Requests(config, database, writer, pool, self.spawn)
        address, keys = layout.listens(layout.store), layout.keys("store")
        self.server = Server(address, messages.ToStore, requests.answer, keys=keys)
        self.closing.callback(self.server.close)
        self.spawn(_look(database))
        if not durable:
            self.spawn(_sync(database, pool))

    async def _end(self, database: Database) -> None:
        if isinstance(self._failure, FilesLost):
            await asyncio.to_thread(self._rescue, database)
        await asyncio.to_thread(database.close)

    def _rescue(self, database: Database) -> None:
        """Unless the run's folder is gone as well, which looks like a decision."""
        if self._layout.config.exists() and (saved := database.rescue()):
            file = self._layout.database / FILE
            self._failure = FilesLost(
                f"{file} was removed while the store had it open. What it held is saved: move {saved / FILE} to"
                f" {file} and resume the run"
            )


class Requests:
    """What the store answers. `spawn`: runs work in the background, whose errors end the service."""

    def __init__(
        self,
        settings: Store,
        database: Database,
        writer: Writer,
        pool: ThreadPoolExecutor,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._settings, self._database = settings, database
        self._writer, self._pool, self._spawn = writer, pool, spawn
        self._writes = Writes(database, settings.compression)
        self._underway_bytes = 0
        self._full: asyncio.Task[None] | None = None  # runs while new samples are refused
        self._why_full = ""
        self._refused: set[type[messages.Message]] = set()  # for want of space
        self._handlers = self._table()

    def _table(
        self,
    ) -> dict[type[messages.Message], Callable[[Any, Sequence[bytes]], Awaitable[messages.Message | Parcel]]]:
        reads, writes = Reads(self._database), self._writes
        return {
            messages.OpenRun: self._write(writes.open_run),
            messages.PutPrompts: self._write(writes.put_prompts),
            messages.PutSamples: self._put_samples,
            messages.PutPartials: self._put_partials,
            messages.PutTurns: self._put_turns,
            messages.PutAnswer: self._put_first,
            messages.PutCalls: self._put_first,
            messages.GetSessions: self._read(partial(read_sessions, self._database)),
            messages.PutScores: self._write(writes.put_scores),
            messages.MarkSamples: self._write(writes.mark),
            messages.ForgetLogprobs: self._write(writes.forget_logprobs),
            messages.GetPrompts: self._read(reads.prompts),
            messages.GetSamples: self._read(reads.samples),
            messages.GetPartials: self._read(reads.partials),
            messages.GetHistory: self._read(reads.history),
            messages.GetLengths: self._read(reads.lengths),
            messages.GetJournal: self._read(reads.journal),
            messages.GetStoreStats: self._read(self._stats),
        }

    async def answer(
        self, peer: bytes, message: messages.Message, frames: Sequence[bytes]
    ) -> messages.Message | Parcel:
        try:
            answer = await self._handlers[type(message)](message, frames)
        except StoreFull as error:
            if isinstance(message, messages.PutPartials):
                raise  # frequent and optional: only a finished sample decides whether the store is full
            self._why_full = str(error)
            self._refused.add(type(message))
            self._full = self._full or self._spawn(self._wait_for_space())
            raise
        except (Unusable, FilesLost, lmdb.Error) as error:
            explained = self._database.explain(error) if isinstance(error, lmdb.Error) else error
            if isinstance(explained, Unusable | FilesLost):
                self._spawn(_end(explained))
            if isinstance(explained, FilesLost):  # its callers wait, so that this process can save what it holds
                raise PeerGone(f"the store ends: {explained}") from None
            raise explained from None
        if self._full is not None and type(message) in {messages.PutSamples, *self._refused}:
            self._took(self._full, type(message))
        return answer

    def _took(self, full: asyncio.Task[None], kind: type[messages.Message]) -> None:
        """There is room again once each kind that was refused is taken. Samples take the most."""
        self._refused.discard(kind)
        if self._refused and kind is not messages.PutSamples:
            return
        full.cancel()
        self._full, self._why_full = None, ""
        self._refused.clear()
        log.warning("there is room again: new samples are accepted")

    async def _wait_for_space(self) -> None:
        """A checkpoint may free space; otherwise the user has to, and the log says so."""
        began = time.monotonic()
        while (left := began + FULL_S - time.monotonic()) > 0:
            log.error("%s; until then new samples are refused, for %.0f s at most", self._why_full, left)
            await asyncio.sleep(min(WARN_S, left))
        raise StoreFull(self._why_full)

    def _stats(self, message: messages.GetStoreStats) -> messages.StoreStats:
        return msgspec.structs.replace(self._database.stats(), full=self._why_full)

    def _write(self, operation: Callable[[Batch, Any], None]) -> Callable[..., Awaitable[messages.Message]]:
        async def handle(message: messages.Message, frames: Sequence[bytes]) -> messages.Message:
            await self._writer.write(lambda batch: operation(batch, message))
            return DONE

        return handle

    async def _put_samples(self, message: messages.PutSamples, frames: Sequence[bytes]) -> messages.Message:
        size = sum(map(len, frames))
        with self._underway(size):
            rows = await self._in_pool(partial(prepare, message, frames, self._level()))
            kept: list[messages.SampleInfo] = []

            def put(batch: Batch) -> None:
                kept[:] = self._writes.put_samples(batch, rows)  # may run twice

            await self._writer.write(put, size)
        return messages.Kept(samples=kept) if kept else DONE

    async def _put_partials(self, message: messages.PutPartials, frames: Sequence[bytes]) -> messages.Message:
        size = sum(map(len, frames))
        missing: list[messages.SampleId] = []

        def put(batch: Batch) -> None:
            missing[:] = self._writes.put_partials(batch, message, b"".join(frames))  # may run twice

        with self._underway(size):
            await self._writer.write(put, size)
        return messages.Missing(samples=missing) if missing else DONE

    async def _put_turns(self, message: messages.PutTurns, frames: Sequence[bytes]) -> messages.Message:
        size = sum(map(len, frames))

        def put(batch: Batch) -> None:
            for sample in self._writes.sessions.put_turns(batch, message, frames):
                self._writes.remove_partials(batch, sample)

        with self._underway(size):
            await self._writer.write(put, size)
        return DONE

    async def _put_first(
        self, message: messages.PutAnswer | messages.PutCalls, frames: Sequence[bytes]
    ) -> messages.Message:
        """Whoever comes first; others are told that they came later."""
        tokens, sessions, late = b"".join(frames), self._writes.sessions, [False]

        def put(batch: Batch) -> None:  # may run twice
            if isinstance(message, messages.PutCalls):
                late[:] = [sessions.put_calls(batch, message)]
            else:
                late[:] = [sessions.put_answer(batch, message, tokens)]

        with self._underway(len(tokens)):
            await self._writer.write(put, len(tokens))
        return messages.Begun() if late[0] else DONE

    @contextlib.contextmanager
    def _underway(self, size: int) -> Iterator[None]:
        if self._underway_bytes + size > MOST_BYTES:
            raise Overloaded(f"{self._underway_bytes >> 20} MiB of samples wait to be written; try again later")
        self._underway_bytes += size
        try:
            yield
        finally:
            self._underway_bytes -= size

    def _level(self) -> int:
        """Every frame carries its own level, so under pressure speed comes first."""
        level = self._settings.compression
        return level if self._underway_bytes < PRESSURE_BYTES else min(level, PRESSURE_LEVEL)

    def _read(self, query: Callable[[Any], Any]) -> Callable[..., Awaitable[messages.Message | Parcel]]:
        async def handle(message: messages.Message, frames: Sequence[bytes]) -> messages.Message | Parcel:
            answer = await self._in_pool(partial(query, message))
            return Parcel(*answer) if isinstance(answer, tuple) else answer

        return handle

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


async def _sync(database: Database, pool: ThreadPoolExecutor) -> None:
    while True:
        await asyncio.sleep(SYNC_S)
        await asyncio.get_running_loop().run_in_executor(pool, database.sync)


async def _look(database: Database) -> None:
    """Raises `FilesLost` also when nothing is written, and `Unusable`."""
    while True:
        await asyncio.sleep(LOOK_S)
        database.check_file()
        database.check_locks()


def _database(layout: RunLayout, settings: Store, *, durable: bool) -> Database:
    """Raises `FilesLost` rather than beginning an empty one for a run that had one."""
    file = layout.database / FILE
    if not (file.exists() and file.stat().st_size) and has_worked(layout):
        raise FilesLost(
            f"{file} is missing or empty, but this run has worked: put the file back, from a copy of the folder or of"
            " `rhymed history backup`, or resume the run with --without-history"
        )
    return Database(layout.database, int(settings.map_gib * 2**30), durable=durable)


async def _end(error: Exception) -> None:
    """The restarted process probes the folder before it opens it."""
    raise error
