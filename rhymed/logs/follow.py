"""The newest lines of files that are still written, as they come. Files may appear, and be turned over.

A line counts when its line break is there. What comes in one look is sorted by time. Knows no clock but its caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rhymed.logs.read import LONGEST, Clock, Entry, Inode, Log, inode, logs, open_log, parse


class Tail:
    """One file under a name that may come to stand for another file."""

    def __init__(self, log: Log, path: Path, *, from_end: bool) -> None:
        self._log, self._path = log, path
        self._clock = Clock()
        self._file: BinaryIO | None = None
        self._rest = b""
        if self._reopen() and from_end and self._file is not None:
            self._file.seek(_whole(self._file))

    @property
    def place(self) -> tuple[Inode, int]:
        """The file that is read, and how far it was."""
        return (inode(self._file), self._file.tell()) if self._file is not None else ((-1, -1), 0)

    def look(self) -> Iterator[Entry]:
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
                return  # the rest of it comes later
            line, self._rest = self._rest, b""
            yield from parse(line, self._log, self._clock)

    def _reopen(self) -> bool:
        """Whether the name stands for another file than we have."""
        try:
            found = self._path.stat()
            if self._file is not None and (found.st_dev, found.st_ino) == inode(self._file):
                if found.st_size < self._file.tell():
                    self._file.seek(0)  # somebody emptied it
                return False
            fresh = open_log(self._path)
        except OSError:
            return False
        self.close()
        self._file, self._rest = fresh, b""
        return True


class Follower:
    """Every `look` gives what has come since the last one; the first one is about what comes after it was made."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._tails: dict[Path, Tail] = {}
        self._adopt(from_end=True)
        self.begins = dict(tail.place for tail in self._tails.values())  # inode -> byte from which on it follows

    def look(self) -> list[Entry]:
        self._adopt(from_end=False)
        found = [entry for tail in self._tails.values() for entry in tail.look()]
        return sorted(found, key=lambda entry: entry.t)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _adopt(self, *, from_end: bool) -> None:
        for log in logs(*self._folders):
            path = log.files[-1]
            if path.name.endswith((".log", ".out")) and path not in self._tails:
                self._tails[path] = Tail(log, path, from_end=from_end)


def _whole(file: BinaryIO) -> int:
    """Where the last line begins that is not yet written to its end; else the file's end."""
    end = file.seek(0, 2)
    start = max(0, end - LONGEST)
    file.seek(start)
    found = file.read(end - start).rfind(b"\n")
    return start + found + 1
