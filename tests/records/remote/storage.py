"""Storage in memory that fails at a chosen operation, and leaves half of what it was writing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from rhymed.records.remote.place import Place


class Failing(MemoryFileSystem):
    """`fail_at`: the number of the operation that fails, from 1 on; 0: none."""

    protocol = "failing"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.done, self.fail_at = 0, 0

    def fails(self) -> bool:
        self.done += 1
        return self.done == self.fail_at

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.fails():
            super().pipe_file(path, value[: len(value) // 2])
            raise OSError(errno.EIO, "torn")
        super().pipe_file(path, value)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def cat_file(self, path: str, **options: Any) -> bytes:
        self._may_fail()
        return super().cat_file(path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._may_fail()
        return super().ls(path, detail)

    def rm_file(self, path: str) -> None:
        self._may_fail()
        super()._rm(path)

    def _may_fail(self) -> None:
        if self.fails():
            raise OSError(errno.EIO, "no answer")


def failing() -> tuple[Failing, Place]:
    files = Failing()
    return files, Place(files, "/bucket/runs/one", "failing://bucket/runs/one")
