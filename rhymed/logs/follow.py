"""Follows files that are still written. Files may appear and be rotated.

A line counts once it has its line break. The entries of one `poll` are sorted by time. Has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rhymed.logs.read import LONGEST, Entry, Inode, LastStamp, Log, inode, logs, open_log, parse


class Tail:
    """One file under a name that may be rotated to another file."""

    def __init__(self, log: Log, path: Path, *, from_end: bool) -> None:
        self._log, self._path = log, path
        self._last = LastStamp()
        self._file: BinaryIO | None = None
        self._rest = b""
        if self._reopen() and from_end and self._file is not None:
            self._file.seek(_last_complete(self._file))

    @property
    def place(self) -> tuple[Inode, int]:
        """The open file and the position in it."""
        return (inode(self._file), self._file.tell()) if self._file is not None else ((-1, -1), 0)

    def poll(self) -> Iterator[Entry]:
        yield from self._read()
        if self._reopen():
            yield from self._read()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self) -> Iterator[Entry]:
        while self._file is not None and (line := self._file.readline(LONGEST)):
            self._rest += line
            if not line.endswith(b"\n") and len(self._rest) < LONGEST:
                return  # incomplete: the rest will follow
            line, self._rest = self._rest, b""
            yield from parse(line, self._log, self._last)

    def _reopen(self) -> bool:
        """Open the file again if the name stands for another one now. True if it did."""
        try:
            status = self._path.stat()
            if self._file is not None and (status.st_dev, status.st_ino) == inode(self._file):
                if status.st_size < self._file.tell():
                    self._file.seek(0)  # it was truncated
                return False
            fresh = open_log(self._path)
        except OSError:
            return False
        self.close()
        self._file, self._rest = fresh, b""
        return True


class Follower:
    """Each `poll` returns the entries since the last one, the first since construction."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._tails: dict[Path, Tail] = {}
        self._adopt(from_end=True)
        self.begins = dict(tail.place for tail in self._tails.values())  # inode -> byte at which it starts to follow

    def poll(self) -> list[Entry]:
        self._adopt(from_end=False)
        entries = [entry for tail in self._tails.values() for entry in tail.poll()]
        return sorted(entries, key=lambda entry: entry.t)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _adopt(self, *, from_end: bool) -> None:
        for log in logs(*self._folders):
            path = log.files[-1]
            if path.name.endswith((".log", ".out")) and path not in self._tails:
                self._tails[path] = Tail(log, path, from_end=from_end)


def _last_complete(file: BinaryIO) -> int:
    """Where an incomplete last line begins, else the end of the file."""
    end = file.seek(0, 2)
    start = max(0, end - LONGEST)
    file.seek(start)
    return start + file.read(end - start).rfind(b"\n") + 1
