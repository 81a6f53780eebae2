"""Folders and files of the run in places where other users may make files, too: /tmp, shared memory.

Invariant: under a name that can be guessed, a process uses only a folder that its own user owns, that is no link, and
that no other user may write. This holds for root, too. Files that need no name have none.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from rhymed.core import atomic
from rhymed.core.errors import NotOurs

log = logging.getLogger(__name__)

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def trouble(folder: Path) -> str:
    """Why the folder does not belong to this user alone, as the end of a sentence; empty: it does, or does not
    exist."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be examined ({error.strerror})"
    if stat.S_ISLNK(found.st_mode):
        return f"is a link, made by user {found.st_uid}"
    if not stat.S_ISDIR(found.st_mode):
        return f"is a file of user {found.st_uid}"
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o022:
        return "may be written by other users"
    return ""


def own(folder: Path) -> None:
    """Make the folder, or use it if it belongs to this user alone; no other user may read it afterwards. Raises
    `NotOurs`, `OSError`."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if why := trouble(folder):
        raise NotOurs(f"{folder} {why}")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)  # the folder may have been replaced since it was examined
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NotOurs(f"{folder} belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o077:
            os.fchmod(opened, 0o700)
    finally:
        os.close(opened)


def folder(wanted: Path) -> Path:
    """`wanted` if it belongs to this user alone, made if it is missing; else a new folder next to it, under a random
    name, and a warning. Raises `OSError`."""
    try:
        own(wanted)
    except (NotOurs, NotADirectoryError) as error:
        made = new_folder(wanted)
        log.warning("%s, so %s is used", error, made)
        return made
    return wanted


def new_folder(path: Path) -> Path:
    """A folder next to `path` whose name begins with the name of `path` and has a random end. Raises `OSError`."""
    return Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))


class TemporaryFolder:
    """A new folder in the folder of temporary files, until it is closed. Those of the same name that killed processes
    have left are removed when a process makes its first one."""

    def __init__(self, name: str) -> None:
        """Raises `OSError`."""
        temporary = Path(tempfile.gettempdir())
        _remove_left(temporary, name)
        while True:
            self.path = new_folder(temporary / name)
            self._lock = _locked(self.path)
            if self._lock is not None and atomic.is_named(self._lock, self.path):
                break  # no other process took it for one that was left

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


@functools.cache
def _remove_left(temporary: Path, name: str) -> None:
    for left in temporary.glob(f"{name}-*"):
        if not trouble(left) and (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, which ends with the process; None: another one holds it."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


def compiled() -> Path:
    """The folder where torch keeps compiled code, which it also runs, in this process and its children: that of the
    environment, or one that is named there from now on. Torch's own default is a known name in a folder where any
    user may have made it."""
    if not os.environ.get(COMPILED):
        os.environ[COMPILED] = str(folder(Path(tempfile.gettempdir()) / f"rhymed-compiled-{os.geteuid()}"))
    return Path(os.environ[COMPILED])


class MemoryFile:
    """A file in memory without a name in any folder: gone with this process, however it ends. Processes of the same
    user open it by `path` while this one lives."""

    def __init__(self, name: str, content: bytes = b"") -> None:
        self.descriptor = os.memfd_create(name)
        os.fchmod(self.descriptor, 0o600)
        os.write(self.descriptor, content)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def close(self) -> None:
        """Close the file. Processes that have it open keep it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
