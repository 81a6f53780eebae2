"""What a disk holds after a power cut, by the record of what was written to it.

The model is what POSIX promises and file systems with a journal do:

* A flush of a file makes its content and size durable as they were when it began. Of what was written since, each
  sector of 512 bytes has any of its versions, independently of the others; the size is any of its values.
* A flush of a folder makes its names durable. Of the changes of names in one folder since, the first ones are there,
  up to any number of them; folders are independent of each other, and of the files' content. A flush of a file does
  not keep its name. A rename from one folder to another happens wholly or not at all.
* A write to a file that was opened with O_DSYNC is durable when it returns.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
HEAD = struct.Struct("<IIQQqII")  # `struct record` of disk.c
LEAST_HOLE = 1 << 12


class Record(NamedTuple):
    end: int  # position in the record's file after it
    kind: str
    inode: int
    token: int
    at: int
    path: str
    data: bytes


def records(file: Path) -> Iterator[Record]:
    """In the order in which they happened. The last one may be cut off."""
    with file.open("rb") as opened:
        while len(head := opened.read(HEAD.size)) == HEAD.size:
            kind, _, inode, token, at, path_bytes, data_bytes = HEAD.unpack(head)
            path, data = opened.read(path_bytes), opened.read(data_bytes)
            if len(data) == data_bytes:
                yield Record(opened.tell(), chr(kind), inode, token, at, os.fsdecode(path), data)


@dataclass
class File:
    """Its durable content, its content now, and the versions between them, by sector."""

    durable: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # sector: when, content
    sizes: list[tuple[int, int]] = field(default_factory=list)  # when, size

    def write(self, when: int, at: int, data: bytes, *, through: bool) -> None:
        end = at + len(data)
        if end > len(self.now):
            self.now.extend(bytes(end - len(self.now)))
            self.sizes.append((when, end))
        self.now[at:end] = data
        for sector in range(at // SECTOR, -(-end // SECTOR)):
            content = bytes(self.now[sector * SECTOR : (sector + 1) * SECTOR])
            if through:
                self.versions.pop(sector, None)
                _place(self.durable, sector, content)
            else:
                self.versions.setdefault(sector, []).append((when, content))

    def resize(self, when: int, size: int) -> None:
        if size < len(self.now):
            for sector in [one for one in self.versions if one * SECTOR >= size]:
                del self.versions[sector]
            del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))
        self.sizes.append((when, size))

    def flush(self, when: int) -> None:
        """What was there at that time is durable."""
        sizes = [size for at, size in self.sizes if at <= when]
        _resize(self.durable, sizes)
        for sector, versions in list(self.versions.items()):
            if kept := [content for at, content in versions if at <= when]:
                _place(self.durable, sector, kept[-1])
            self.versions[sector] = versions[len(kept) :]
            if not self.versions[sector]:
                del self.versions[sector]
        _resize(self.durable, sizes[-1:])
        self.sizes = self.sizes[len(sizes) :]

    def after_cut(self, rng: random.Random) -> bytes:
        content, share = bytearray(self.durable), rng.choice((0.0, rng.random(), rng.random(), 1.0))
        sizes = [size for _, size in self.sizes[: rng.randint(0, len(self.sizes))]]
        _resize(content, sizes)
        size = len(content)
        for sector, versions in self.versions.items():
            if rng.random() < share:
                _place(content, sector, rng.choice(versions)[1])
        return bytes(content[:size])


def _resize(content: bytearray, sizes: list[int]) -> None:
    """To these sizes, one after the other."""
    for size in sizes:
        del content[size:]
        content.extend(bytes(size - len(content)))


def _place(content: bytearray, sector: int, data: bytes) -> None:
    start = sector * SECTOR
    content.extend(bytes(max(0, start + len(data) - len(content))))
    content[start : start + len(data)] = data


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder | str] = field(default_factory=dict)  # str: a link's target


class Change(NamedTuple):
    """One or two steps of names that happen together."""

    when: int
    steps: tuple[tuple[Folder, str, File | Folder | str | None], ...]  # None: the name is removed


class Disk:
    """Follows the records of what happened below a folder, which was empty when they began."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._now, self._durable = Folder(), Folder()  # `_durable`: of the root; of others see `_kept`
        self._kept: dict[Folder, Folder] = {self._now: self._durable}  # durable names of each folder that there is
        self._objects: dict[int, File | Folder] = {0: self._now}
        self._changes: list[Change] = []
        self._flushes: dict[int, int] = {}  # when each began
        self.writes = self.flushes = 0

    def apply(self, record: Record) -> None:
        what = self._objects.get(record.inode)
        if record.kind in "WTA" and what is None:  # a file from before the record began, or a removed one
            return
        match record.kind:
            case "W" if isinstance(what, File):
                self.writes += 1
                what.write(record.end, record.at, record.data, through=bool(record.token))
            case "T" if isinstance(what, File):
                what.resize(record.end, record.at)
            case "A" if isinstance(what, File):
                what.resize(record.end, max(record.at, len(what.now)))
            case "S":
                self._find(record, what)
                self._flushes[record.token] = record.end
            case "E":
                self.flushes += 1
                self._flush(record.path, what, self._flushes.pop(record.token))
            case _:
                self._rename(record)

    def _rename(self, record: Record) -> None:
        folder, name = self._place(record.path)
        other = os.fsdecode(record.data)
        if record.kind in "CD":
            made: File | Folder = File() if record.kind == "C" else Folder()
            if isinstance(made, Folder):
                self._kept[made] = Folder()
            self._objects[record.inode] = made
            self._change(record.end, (folder, name, made))
        elif record.kind == "Y":
            self._change(record.end, (folder, name, other))
        elif record.kind == "U":
            self._change(record.end, (folder, name, None))
        elif record.kind in "RL":
            to, new = self._place(other)
            taken = ((folder, name, None),) if record.kind == "R" else ()
            if name in folder.names:  # else it is from before the record began
                self._change(record.end, *taken, (to, new, folder.names[name]))

    def _find(self, record: Record, what: File | Folder | None) -> None:
        """A library may rename by a system call of its own (safetensors does): seen when the file is flushed."""
        if what is None or record.path == self._root or record.path.endswith(" (deleted)"):
            return
        folder, name = self._place(record.path)
        if folder.names.get(name) is not what:
            earlier = next(old for old, other in folder.names.items() if other is what)
            self._change(record.end, (folder, earlier, None), (folder, name, what))

    def _change(self, when: int, *steps: tuple[Folder, str, File | Folder | str | None]) -> None:
        change = Change(when, steps)
        _perform(change, {})
        self._changes.append(change)

    def _flush(self, path: str, what: File | Folder | None, when: int) -> None:
        if path == self._root:
            what = self._now
        if isinstance(what, File):
            what.flush(when)
        elif isinstance(what, Folder):
            left = []
            for change in self._changes:
                if change.when <= when and any(step[0] is what for step in change.steps):
                    _perform(change, self._kept)
                else:
                    left.append(change)
            self._changes = left

    def _place(self, path: str) -> tuple[Folder, str]:
        *folders, name = path[len(self._root) + 1 :].split("/")
        at = self._now
        for inner in folders:
            found = at.names[inner]
            assert isinstance(found, Folder), f"{path}: {inner} is a folder"
            at = found
        return at, name

    def cut(self, target: Path, rng: random.Random) -> None:
        """Write into the empty folder `target` what the disk holds if the power fails now."""
        kept = {folder: Folder(dict(durable.names)) for folder, durable in self._kept.items()}
        times: dict[Folder, list[int]] = {}
        for change in self._changes:
            for folder, _, _ in change.steps:
                times.setdefault(folder, [0]).append(change.when)
        until = {folder: rng.choice(found) for folder, found in times.items()}
        for change in self._changes:
            if any(change.when <= until[step[0]] for step in change.steps):
                _perform(change, kept)
        self._write(kept, kept[self._now], target, rng)

    def _write(self, kept: dict[Folder, Folder], folder: Folder, target: Path, rng: random.Random) -> None:
        target.mkdir(exist_ok=True)
        for name, what in folder.names.items():
            if isinstance(what, Folder):
                self._write(kept, kept[what], target / name, rng)
            elif isinstance(what, File):
                _write_sparse(target / name, what.after_cut(rng))
            else:
                (target / name).symlink_to(what)


def _perform(change: Change, kept: dict[Folder, Folder]) -> None:
    for folder, name, what in change.steps:
        names = kept.get(folder, folder).names
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


def _write_sparse(file: Path, content: bytes) -> None:
    end = len(content.rstrip(b"\0"))
    with file.open("wb") as opened:
        opened.write(content[:end])
        opened.truncate(len(content))
