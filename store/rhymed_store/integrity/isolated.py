"""A database read through a child process: what kills the reader on a damaged page costs what lies there, no more.

Invariant: nothing in the file ends this process, makes it wait for ever, or hides entries that a child can reach
from either side of the damage. The child holds one snapshot; a child that replaces a dead one takes the newest. Knows
nothing of what keys and values mean.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed.core.text import quoted
from rhymed_store.database.probe import death
from rhymed_store.integrity.child import DIED, DISORDER, END, MORE, REFUSED

SCAN_ENTRIES = 4096  # of one request; after a death one at a time, up to the entry that kills
ANSWER_S = 300.0  # of one request; a slow disk has thousands of pages to read for it
SPLITS = 16  # attempts a table to read between two damaged places


class Unreadable(Exception):
    """LMDB reported an error, or the child died. Says how."""


class Gap(NamedTuple):
    """Entries between these keys may be missing. None: the table's end."""

    low: bytes
    high: bytes | None
    why: str


class IsolatedReader:
    """A context manager. Raises `StoreDamaged` where LMDB cannot open the file.

    Every method raises `StoreError` where the machine is at fault.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._ask("open")
        except StoreError:
            self.close()
            raise
        except Unreadable as error:
            self.close()
            raise StoreDamaged(
                f"{folder / 'data.mdb'} cannot be opened ({error}): one of its two headers is damaged, or both."
                f" `rhymed history repair {quoted(folder)}` tries each"
            ) from None

    def close(self) -> None:
        if self._child is not None:
            self._connection.close()  # the child ends by itself
            self._child.wait()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def count(self, table: str) -> int | None:
        """Entries that were written; None where there is no such table. Raises `Unreadable`."""
        count: int | None = self._ask("count", table)
        return count

    def check_pages(self) -> None:
        """Raises `Unreadable` unless every page is either in use, once, or free."""
        self._ask("check_pages", wait_s=None)

    def read(self, table: str, spans: Sequence[tuple[bytes, int, int]]) -> list[bytes | None]:
        """Spans of values: key, first byte, number of bytes. None for one that cannot be read."""
        try:
            found: list[bytes | None] = self._ask("read", table, spans)
        except Unreadable:
            return [None] if len(spans) == 1 else [self.read(table, [span])[0] for span in spans]
        return found

    def entries(self, table: str, *, sizes: bool = False) -> Iterator[tuple[bytes, Any] | Gap]:
        """Keys with their values or, for `sizes`, the sizes of these. Ascending up to the first damage.

        From a damaged place on the table is read from its end; what is left in between is split by key.
        """
        low, why = yield from self._scan(table, b"", None, False, sizes)
        if why == END:
            return
        high, why_back = yield from self._scan(table, b"", low, True, sizes)
        whole = Gap(low, high or None, why)
        gaps = deque([whole])
        for _ in range(SPLITS if why_back != END else 0):
            if gaps:
                gap = gaps.popleft()
                middle = _middle(gap.low, gap.high)
                up, why_up = yield from self._scan(table, middle, gap.high, False, sizes)
                down, why_down = yield from self._scan(table, middle, gap.low, True, sizes)
                gaps += [Gap(gap.low, down, why_down)] if why_down != END else []
                gaps += [Gap(up, gap.high, why_up)] if why_up != END else []
        yield from sorted(gaps, key=lambda gap: gap.low) or [whole]

    def _scan(
        self, table: str, start: bytes, stop: bytes | None, reverse: bool, sizes: bool
    ) -> Generator[tuple[bytes, Any], None, tuple[bytes, str]]:
        """Entries from `start` to `stop`, both left out. Returns the last key, and why the scan ended there."""
        most, died, before = SCAN_ENTRIES, "", start
        while True:
            try:
                entries, state = self._ask("scan", table, start, reverse, most, sizes)
            except Unreadable as error:
                if died:
                    return start, str(error)
                most, died = 1, str(error)
                continue
            for key, value in entries:
                if stop is not None and (key <= stop if reverse else key >= stop):
                    return start, END
                yield key, value
                before, start = start, key
            if state.startswith(DISORDER):
                return before, state  # either of the two keys may be the damaged one
            if state != MORE:
                return start, state

    def _ask(self, name: str, *arguments: Any, wait_s: float | None = ANSWER_S) -> Any:
        if self._child is None:
            self._start()
        try:
            self._connection.send_bytes(msgspec.msgpack.encode((name, *arguments)))
            if not self._connection.poll(wait_s):
                self._kill()
                raise Unreadable(f"reading it did not end within {wait_s:.0f} s")
            succeeded, result = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError, msgspec.MsgspecError):
            self._kill()
            raise StoreError(f"the process that read {self._folder} is gone; try again") from None
        if succeeded == DIED:
            raise Unreadable(death(result, self._folder))
        if succeeded == REFUSED:
            raise StoreError(
                f"{self._folder} cannot be read because of the machine, not of the file: {result}; try again"
            )
        if not succeeded:
            raise Unreadable(result)
        return result

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-P", "-m", "rhymed_store.integrity.child", str(self._folder), str(descriptor)]
            self._child = subprocess.Popen(
                command, pass_fds=[descriptor], stderr=subprocess.DEVNULL, start_new_session=True
            )

    def _kill(self) -> None:
        """The child and its fork."""
        child, self._child = self._child, None
        assert child is not None, "it was asked"
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _middle(low: bytes, high: bytes | None) -> bytes:
    """A key half-way between the two, of the longer one's size."""
    size = max(len(low), len(high or b"")) + 1
    top = high.ljust(size, b"\0") if high is not None else b"\xff" * size
    return ((int.from_bytes(low.ljust(size, b"\0"), "big") + int.from_bytes(top, "big")) // 2).to_bytes(size, "big")
