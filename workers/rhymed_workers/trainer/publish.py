"""Published policy versions: one safetensors file each.

The file is in shared memory if there is room, so publishing is one conversion into memory that the engines on this
machine map. It gets its name only when it is complete; the last `KEEP` versions are kept, open, so that one whose
name was removed (a cleaner of temporary files, a session that ended) is written again. Nothing here is durable: only
checkpoints survive a reboot. Knows no engines and no requests (`rhymed_workers.weights.server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from rhymed.core import atomic, private
from rhymed.core.config import Config
from rhymed.core.errors import NotOurs, TrainerError, WireError
from rhymed.placement.gpus import transport
from rhymed_workers.weights.copies import shared_memory
from rhymed_workers.weights.slices import MappedFile, Published, slicing

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from rhymed_workers.weights.shared import Offers

    Tensors: TypeAlias = Iterable[tuple[str, Tensor | NDArray[Any]]]

log = logging.getLogger(__name__)

KEEP = 2
LOOK_S = 1.0
ALIGN = 64  # bytes
PIECE = 1 << 20  # elements
WRITERS = min(8, os.cpu_count() or 1)  # threads
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


class Source(Protocol):
    """A learner, as far as its weights are published."""

    @property
    def steps(self) -> int: ...

    def tensors(self) -> dict[str, Any]: ...

    def metadata(self) -> dict[str, str]: ...


class Publisher:
    """Writes versions, for one trainer at a time: files of an earlier trainer in the folder are removed."""

    def __init__(self, folder: Path, dtype: str = "bfloat16", *, offers: Offers | None = None) -> None:
        """`offers`: give the newest version from memory of the tensors' device, too."""
        self._offers = offers
        self._fallback = folder
        self._dtype = dtype
        self._folder: Path | None = None
        self._left: Path | None = None  # in shared memory, with versions that are still kept
        self._kept: dict[int, Published] = {}
        self._lock = threading.Lock()  # published by one thread, found by others
        self._closed = False
        self._lost: int | None = None  # a version that was asked for, whose file another program has changed

    def publish(
        self, version: int, tensors: Tensors, metadata: Mapping[str, str] = MappingProxyType({})
    ) -> Published:
        """Blocking. Tensors that share memory (a tied head) are written once, under their first name.

        Torch tensors, or numpy arrays that already have the published dtype. `metadata` goes into the file's header.
        """
        self.withdraw()
        named = list(tensors)
        numpy_only = all(isinstance(tensor, np.ndarray) for _, tensor in named)
        kept = named if numpy_only else unique(named)
        header, starts, size = _header(kept, DTYPES[self._dtype], {**metadata, "version": str(version)})
        write = partial(_write_arrays if numpy_only else _write, tensors=kept, starts=starts, dtype=self._dtype)
        path = self._put(f"version-{version:06d}.safetensors", size, header, write)
        if self._offers is not None and not numpy_only:
            self._offers.offer(path, kept, starts, self._dtype)
        published = Published(version, secrets.token_hex(8), path, size, MappedFile(path, slicing(size)))
        with self._lock:
            if self._closed:
                path.unlink(missing_ok=True)
                raise TrainerError(f"version {version} was not published: the trainer ends")
            self._kept[version] = published
            self._lost = None
            for old in sorted(self._kept)[:-KEEP]:
                self._kept.pop(old).path.unlink(missing_ok=True)
        return published

    def _put(self, name: str, size: int, header: bytes, write: Callable[[int], None]) -> Path:
        """In shared memory, or where that is full, in the run's folder from now on. Raises `TrainerError`."""
        folder = self._place(size)
        try:
            return _new_version(folder / name, header, write)
        except OSError as error:
            if self._closed:
                raise TrainerError(f"{name} was not published: the trainer ends") from error
            if folder == self._fallback:
                raise TrainerError(f"{folder} cannot take the weights: {error}; free some space") from error
            log.warning("%s cannot take the weights (%s): publishing to %s", folder, error, self._fallback)
        private.own(self._fallback)
        self._left, self._folder = folder, self._fallback
        return self._put(name, size, header, write)

    def find(self, version: int) -> Published:
        """Blocking, if its file must be written again. Raises `TrainerError` if it is not kept."""
        with self._lock:
            if version not in self._kept:
                kept = ", ".join(map(str, sorted(self._kept))) or "none"
                raise TrainerError(f"version {version} of the weights is not kept; there is: {kept}")
            return self._present(self._kept[version])

    def edition(self, edition: str) -> Published:
        """As `find`."""
        with self._lock:
            for published in self._kept.values():
                if published.edition == edition:
                    return self._present(published)
        raise TrainerError(f"edition {edition} of the weights is not kept: a newer one has replaced it")

    def _present(self, published: Published) -> Published:
        """Its file, under its name."""
        path = published.path
        try:
            published.file.check()
            if published.file.named:
                return published
            log.warning("%s was removed from outside of this run: publishing it again", path)
            private.own(path.parent)
            with atomic.new_file(path) as part:
                published.file.copy_to(part)
            file = MappedFile(path, published.file.slicing)
        except (OSError, WireError, NotOurs) as error:
            self._lost = published.version
            raise TrainerError(f"version {published.version} of the weights was lost: {error}") from error
        self._kept[published.version] = again = published._replace(file=file)
        return again

    def publish_from(self, learner: Source) -> Published:
        """Blocking. On the learner's thread."""
        return self.publish(learner.steps, learner.tensors().items(), learner.metadata())

    async def replace_lost(
        self, learner: Source, on_thread: Callable[[Callable[[], None], str], Awaitable[None]]
    ) -> None:
        """Until cancelled: publish a version once more whose file was lost, when somebody has asked for it. An older
        one than the learner has is in no memory any more, and its readers are soon sent a newer one."""

        def again() -> None:
            if learner.steps == self._lost:
                log.warning("version %d was lost: publishing it from memory", self._lost)
                self.publish_from(learner)
            self._lost = None

        while True:
            await asyncio.sleep(LOOK_S)
            if self._lost is not None:
                await on_thread(again, "publish")

    def withdraw(self) -> None:
        """The newest version is in files only from now on; the memory is free when it has no reader."""
        if self._offers is not None:
            self._offers.withdraw()

    def close(self) -> None:
        """Remove all versions. A process that has one open can still read it."""
        self.withdraw()
        with self._lock:
            self._closed = True
            self._kept.clear()
        for folder in (self._folder, self._left):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _place(self, size: int) -> Path:
        with contextlib.suppress(NotOurs):
            if self._folder is not None:
                private.own(self._folder)  # removed from outside, perhaps
                return self._folder
        self._folder = self._choose(size)
        return self._folder

    def _choose(self, size: int) -> Path:
        """A new folder. In shared memory its name cannot be guessed: other users may make folders there, too."""
        memory = shared_memory()
        shared = memory / f"rhymed-{hashlib.blake2b(bytes(self._fallback.resolve()), digest_size=6).hexdigest()}"
        for left in (self._fallback, shared, *memory.glob(f"{shared.name}-*")):  # left by a killed trainer
            if not private.trouble(left):
                shutil.rmtree(left, ignore_errors=True)
        needed = (KEEP + 1) * size
        usable = memory.is_dir() and os.access(memory, os.W_OK)
        if usable and shutil.disk_usage(memory).free >= needed:
            return private.new_folder(shared)
        if usable:
            log.warning(
                "%s has less than the %.1f GiB that %d versions need: publishing to %s, which is slower",
                memory,
                needed / 2**30,
                KEEP + 1,
                self._fallback,
            )
        private.own(self._fallback)
        return self._fallback


def publisher_for(config: Config, folder: Path, dtype: str) -> Publisher:
    if transport(config) != "ipc":
        return Publisher(folder, dtype)
    from rhymed_workers.weights.shared import Offers

    return Publisher(folder, dtype, offers=Offers())


def unique(tensors: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Of tensors that share memory, only the first."""
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    kept = []
    for name, tensor in tensors:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in seen:
            kept.append((name, tensor.detach()))
        seen.add(key)
    return kept


def _header(tensors: list[tuple[str, Any]], dtype: str, metadata: dict[str, str]) -> tuple[bytes, list[int], int]:
    """(header, offset of each tensor in the file, size of the file) in the safetensors format, all of one dtype."""
    item = ITEM_BYTES[dtype]
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    offsets, end = [], 0
    for name, tensor in tensors:
        offsets.append(end)
        end += math.prod(tensor.shape) * item
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offsets[-1], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + offset for offset in offsets], start + end


def _new_version(path: Path, header: bytes, write: Callable[[int], None]) -> Path:
    with atomic.new_file(path) as part, part.open("wb", buffering=0) as file:
        file.write(header)
        write(file.fileno())
    return path


def _write_arrays(descriptor: int, tensors: list[tuple[str, Any]], starts: list[int], dtype: str) -> None:
    """Without torch. The arrays are small."""
    for (name, array), start in zip(tensors, starts, strict=True):
        if array.dtype != dtype:
            raise TrainerError(f"{name} is {array.dtype}, and {dtype} is published")
        _put(descriptor, memoryview(array.tobytes()), start)


def _put(descriptor: int, content: memoryview, start: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], start + done)


def _write(descriptor: int, tensors: list[tuple[str, Tensor]], starts: list[int], dtype: str) -> None:
    """Convert and write piece by piece, on our own threads.

    A piece is small enough to stay in the cache between conversion and write. Torch's threads would be woken for
    every piece, which costs more than the work itself on a busy machine; a mapped file would fault on every page.
    """
    import torch

    target: torch.dtype = getattr(torch, dtype)
    pieces = []
    for (_, tensor), start in zip(tensors, starts, strict=True):
        flat = tensor.reshape(-1)
        for first in range(0, len(flat), PIECE):
            pieces.append((flat[first : first + PIECE], start + first * target.itemsize))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(WRITERS, "publish", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        parts = [pieces[writer::WRITERS] for writer in range(WRITERS)]
        list(pool.map(lambda part: _write_part(descriptor, part, target), parts))
    torch.set_num_threads(threads)  # later threads take the number that was set last


def _write_part(descriptor: int, pieces: list[tuple[Tensor, int]], dtype: torch.dtype) -> None:
    import torch

    buffer = torch.empty(PIECE, dtype=dtype)
    content = memoryview(buffer.view(torch.uint8).numpy())
    for piece, start in pieces:
        buffer[: len(piece)].copy_(piece)
        _put(descriptor, content[: len(piece) * dtype.itemsize], start)
