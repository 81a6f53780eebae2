"""Writes the trainer's checkpoints on a thread of its own, one at a time, while the next steps are trained.

A checkpoint gets its name when all of it, of every rank, is durable. A crash before that leaves the one before as the
newest. Does not know what is in a checkpoint, nor whom it is reported to.

`Checkpoints` is that thread; `only_writer` keeps a second writer away, and `copied` copies what a step may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rhymed.core.errors import DeadlineExceeded, DiskFull, TrainerError
from rhymed.core.run import checkpoint
from rhymed.core.run.checkpoint import Checkpoint
from rhymed.core.run.layout import RunLayout, ids_of
from rhymed.core.service.retry import FULL_S, retry
from rhymed.core.tasks import watched

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# One process at a time writes a run's checkpoints and publishes its weights: the trainer, or its rank 0.
#
# The broker refuses a second trainer, too, but only after it has loaded and published; and a trainer that the broker
# has given up may come back to life. The lock of a dead process is released by the system, whatever ended it.

LOCK = "trainer.lock"
OWNER_CHARS = 300


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Of the run in `folder`, until this ends. Raises `TrainerError` if a living process is that already."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainerError(
                f"{folder} has a trainer already{_owner(lock)}: it alone writes checkpoints and weights; end it"
                " before another one is started, or give this run another run.name"
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): start no second trainer for this run", lock.name, error.strerror)
        lock.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}", file=lock, flush=True)
        yield


def _owner(lock: TextIO) -> str:
    lock.seek(0)
    text = lock.read(OWNER_CHARS).strip()
    return f" ({text})" if text else ""


# Checkpoints, one at a time.

MEASURE_S = 2.0  # between two looks at how much is written

Finish = Callable[[], Mapping[str, str]]
"""Writes a copy, and again if it is called again: see `rhymed.core.run.checkpoint.Write`."""


class Checkpoints:
    """`report`: is given the steps in the oldest one that is kept, and in the newest. If newer ones are damaged, the
    run resumes from the oldest and needs what the store has of the later steps, log-probs included."""

    def __init__(
        self,
        layout: RunLayout,
        keep: int,
        report: Callable[[int, int], None],
        candidate: Callable[[int], bool] = lambda steps: False,
        newest: int = 0,
    ) -> None:
        """`candidate`: whether the one after so many steps may be the run's best. `newest`: steps in the newest that
        there is; 0: none."""
        self._folder, self._keep, self._report = layout.checkpoints, keep, report
        self._ids, self._run_folder, self._is_candidate = ids_of(layout.folder), layout.folder, candidate
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._lock = asyncio.Lock()  # of the copy in memory: there is one at a time
        self._bytes = 0  # written of the one that is being written
        self._attempts = 0  # to write it: a full disk is tried again
        self.newest = newest  # steps in the newest one

    def close(self) -> None:
        """One that is half written counts for nothing."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def progress(self) -> object:
        """Changes while one is written; None if none is. A look at a disk that hangs changes nothing."""
        return (self._bytes, self._attempts) if self._lock.locked() else None

    async def written(self) -> None:
        """Returns when none is being written."""
        async with self._lock:
            pass

    async def free(self) -> None:
        """As `written`; and no other is begun until `finish`."""
        await self._lock.acquire()

    async def begin(
        self, steps: int, take: Callable[[Path], Finish], on_thread: Callable[..., Awaitable[Any]]
    ) -> Finish | None:
        """Let `take` copy what belongs into the folder, on the learner's thread; None if there is nothing to write.
        After `free`. Raises `CheckpointError`."""

        def begin() -> Finish | None:
            part = checkpoint.begin(self._folder, steps)
            return None if part is None else take(part)

        finish: Finish | None = await self._with_room(lambda: on_thread(begin, "checkpoint"))
        return finish

    async def _with_room(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats work that writes while the disk is full. Raises `DiskFull` after `FULL_S`."""

        async def attempt() -> Any:
            self._attempts += 1
            return await work()

        try:
            return await retry(attempt, "writing a checkpoint", on=DiskFull, patience_s=FULL_S)
        except DeadlineExceeded as error:
            raise DiskFull(str(error)) from None

    async def finish(self, steps: int, write: Finish | None, waited_s: float) -> None:
        """Write the copy and report it. `waited_s`: that training waited for it. Raises `CheckpointError`."""
        started, run = time.perf_counter(), self._ids[-1] if self._ids else ""
        measuring = watched(self._measure(steps))
        try:
            saved = await self._with_room(
                lambda: self._run(lambda: checkpoint.finish(self._folder, steps, write, self._keep, run))
            )
            if self._is_candidate(steps):
                await self._run(lambda: self._candidate(saved))
        finally:
            measuring.cancel()
            self._lock.release()
        self.newest = saved.step
        seconds = time.perf_counter() - started
        log.info("checkpoint %s in %.1f s; training waited %.1f s", saved.folder, seconds + waited_s, waited_s)
        await self.report()

    def _candidate(self, saved: Checkpoint) -> None:
        """Adds a checkpoint that may be the best. If that fails, training continues without it."""
        try:
            checkpoint.keep(self._run_folder, saved)
        except OSError as error:
            log.warning("%s is not among the candidates for the best checkpoint: %s", saved.folder, error)

    async def _measure(self, steps: int) -> None:
        """Of all ranks' files, which lie in one folder."""
        while True:
            with contextlib.suppress(OSError):  # it has just got its name
                self._bytes = await asyncio.to_thread(checkpoint.written_bytes, self._folder, steps)
            await asyncio.sleep(MEASURE_S)

    async def report(self) -> None:
        kept = await self._run(lambda: checkpoint.checkpoints_in(self._folder))
        self._report(kept[0].step if kept else 0, self.newest)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


# Copies for checkpoints, so that a step may change what is still being written.

Write = Callable[[Path], list[str]]
"""Writes into a checkpoint's folder what was taken, on any thread, and again if it is called again. Several ranks
call theirs at the same time. Returns the names of this rank's files, which have to be there then."""


def copied(tensors: Mapping[str, Tensor], *, copy: bool) -> dict[str, Tensor]:
    """`copy`: into host memory; else the tensors themselves. Of parts of tensors on several ranks, the parts."""
    return {
        name: tensor.detach().to("cpu", copy=True) if copy else tensor.detach() for name, tensor in tensors.items()
    }
