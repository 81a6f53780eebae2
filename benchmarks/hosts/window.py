"""Files of weights that repeat: slice i has the content of slice i % n, so only the first n slices take memory.

All that a slice costs is done: it is read, sent, verified, written and passed on. What is missing is the time in
which the system finds memory for the rest of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rhymed.core.errors import TrainerError
from rhymed_workers.weights.slices import MappedFile, Published, Slicing, slicing

KEPT = 2  # versions


class WindowedFile(MappedFile):
    """`window` in bytes, of at least one slice; rounded down to whole slices."""

    def __init__(self, path: Path, slicing: Slicing, window: int, *, writable: bool = False) -> None:
        self._repeat = window // slicing.slice_bytes
        assert self._repeat, f"a window of {window} bytes holds no slice of {slicing.slice_bytes}"
        super().__init__(path, slicing, writable=writable)

    def slice(self, index: int) -> memoryview:
        self.slicing.start(index)
        return super().slice(index % self._repeat)[: self.slicing.length(index)]

    def write(self, index: int, content: Any) -> None:
        """Equal bytes may be written while they are read."""
        self.slicing.start(index)
        super().write(index % self._repeat, content)


class WindowShelf:
    """A trainer's versions of `size` bytes, of random values."""

    def __init__(self, folder: Path, size: int, window: int) -> None:
        self._folder, self._slicing, self._window = folder, slicing(size), window
        step = self._slicing.slice_bytes
        self._values = np.random.default_rng(0).integers(0, 1 << 15, window // step * step // 2, np.uint16)
        self._kept: dict[int, Published] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, version: int) -> Published:
        path = self._folder / f"version-{version}"
        file = WindowedFile(path, self._slicing, self._window, writable=True)
        content = self._values.view(np.uint8)
        step = self._slicing.slice_bytes
        for start in range(0, len(content), step):
            file.write(start // step, content[start : start + step])
        self._kept[version] = made = Published(version, f"window-{version}", path, self._slicing.size, file)
        for old in sorted(self._kept)[:-KEPT]:
            self._kept.pop(old).path.unlink()
        return made

    def find(self, version: int) -> Published:
        if version not in self._kept:
            raise TrainerError(f"version {version} is not kept")
        return self._kept[version]

    def edition(self, edition: str) -> Published:
        return next(one for one in self._kept.values() if one.edition == edition)

    def close(self) -> None:
        self._kept.clear()
