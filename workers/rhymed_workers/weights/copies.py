"""The copies of weights on this host, one a version however many workers there are. No event loop.

Their folder is in shared memory if there is room, named after the trainer's address, so that all workers of a run
that see it share it. Every claim is a lock of the system (`flock`) and ends with its process, also by SIGKILL:

* `users`, shared: somebody uses the folder. Who gets it exclusively may remove the folder.
* `fetching`, exclusive: its holder makes a copy; all other unfinished files are leftovers.
* a complete copy, shared: its reader loads it, or may. Who gets it exclusively may remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from rhymed.core import private
from rhymed.core.errors import WireError

PREFIX = "rhymed-weights-"
SUFFIX = ".safetensors"
PART = ".part"
SPARE = 64 << 20  # bytes that stay free


def shared_memory() -> Path:
    """Containers need to share one: each has its own /dev/shm."""
    return Path(os.environ.get("RHYMED_SHARED_MEMORY") or "/dev/shm")


class HostCopies:
    """One worker's view. `base`: the folder in which the shared folder lies; by default it is chosen by room."""

    def __init__(self, address: str, size: int, base: Path | None = None) -> None:
        """Removes folders that are no longer used. If another user has made the shared folder, this worker
        has one of its own."""
        name = f"{PREFIX}{os.geteuid()}-{hashlib.blake2b(address.encode(), digest_size=6).hexdigest()}"
        bases = [shared_memory(), Path(tempfile.gettempdir())] if base is None else [base]
        for parent in bases:
            _sweep(parent, name)
        self.folder, self._users = _enter(_choose(bases, name, size) / name)
        self._fetching: int | None = None
        self._read: dict[Path, int] = {}  # descriptors of the copies that we may read

    def find(self, name: str) -> Path | None:
        """The complete copy of this name; from now on it is kept for us."""
        path = self.folder / f"{name}{SUFFIX}"
        if path in self._read and _leads_to(path, self._read[path]):
            return path
        with contextlib.suppress(OSError):
            descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_SH)
            if descriptor is not None:
                self._release(path)
                self._read[path] = descriptor
                return path
        return None

    def begin(self) -> bool:
        """Whether it is us who may make a copy now; False: another worker of this host makes one."""
        if self._fetching is None:
            self._fetching = _locked(self.folder / "fetching", os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        return self._fetching is not None

    def part(self, name: str, size: int) -> Path:
        """Path of a file to be written. Raises `WireError` if there is no room for it."""
        for left in self.folder.glob(f"*{PART}"):  # by a worker that was killed
            left.unlink(missing_ok=True)
        self._remove_unread()
        free = shutil.disk_usage(self.folder).free
        if free < size + SPARE:
            raise WireError(
                f"{self.folder} has {free / 2**30:.1f} GiB, and the weights have {size / 2**30:.1f} GiB: give it more"
                " shared memory (containers: shm_size), or set RHYMED_SHARED_MEMORY to a folder with more room"
            )
        return self.folder / f"{name}{PART}"

    def finish(self, part: Path) -> Path:
        """The part is complete and verified. It is kept for us, and copies without a reader are removed."""
        descriptor = _locked(part, os.O_RDONLY, fcntl.LOCK_SH)  # before others see a copy that is not read
        assert descriptor is not None, "only the holder of `fetching` opens the part"
        complete = part.rename(part.with_suffix(SUFFIX))
        self._release(complete)
        self._read[complete] = descriptor
        return complete

    def end(self) -> None:
        """We make no copy any more."""
        if self._fetching is not None:
            os.close(self._fetching)
            self._fetching = None

    def keep_only(self, path: Path | None) -> None:
        """We read this copy, and no other."""
        for other in list(self._read):
            if other != path:
                self._release(other)
        self._remove_unread()

    def close(self) -> None:
        """The last user removes the folder."""
        self.end()
        self.keep_only(None)
        os.close(self._users)
        _remove_unused(self.folder)

    def progress(self) -> object:
        """Changes while another worker of this host makes a copy."""
        found = []
        for part in self.folder.glob(f"*{PART}"):
            with contextlib.suppress(OSError):
                status = part.stat()
                found.append((part.name, status.st_blocks, status.st_mtime_ns))
        return sorted(found)

    def _release(self, path: Path) -> None:
        if (descriptor := self._read.pop(path, None)) is not None:
            os.close(descriptor)

    def _remove_unread(self) -> None:
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path in self._read:
                continue
            with contextlib.suppress(OSError):
                descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_EX)
                if descriptor is not None:
                    path.unlink(missing_ok=True)
                    os.close(descriptor)


def _locked(path: Path, flags: int, lock: int) -> int | None:
    """A descriptor that holds the lock; None if somebody else does. Raises `OSError`."""
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _leads_to(path, descriptor):
            return descriptor
        os.close(descriptor)  # removed between the two calls


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _enter(wanted: Path) -> tuple[Path, int]:
    """Make the folder, and hold it as one of its users."""
    while True:
        folder = private.folder(wanted)
        with contextlib.suppress(FileNotFoundError):
            descriptor = _locked(folder / "users", os.O_RDWR | os.O_CREAT, fcntl.LOCK_SH)
            if descriptor is not None:
                return folder, descriptor


def _remove_unused(folder: Path) -> None:
    """If no process uses it."""
    with contextlib.suppress(OSError):
        descriptor = _locked(folder / "users", os.O_RDWR, fcntl.LOCK_EX)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _sweep(base: Path, ours: str) -> None:
    """Remove what runs have left that were killed."""
    for folder in base.glob(f"{PREFIX}{os.geteuid()}-*"):
        if folder.name != ours and not private.trouble(folder):
            _remove_unused(folder)


def _choose(bases: list[Path], name: str, size: int) -> Path:
    """Where the folder is already, else the first base with room for two versions."""
    for base in bases:
        if (base / name / "users").exists() and not private.trouble(base / name):
            return base
    for base in bases[:-1]:
        if os.access(base, os.W_OK) and shutil.disk_usage(base).free > 2 * size + SPARE:
            return base
    return bases[-1]
