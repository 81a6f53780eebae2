"""The folder of a sweep is held by one command at a time; the kernel releases the lock of a dead one."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from rhymed.errors import ConfigError

LOCK = "sweep.lock"


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Creates the folder. Raises `ConfigError` if another command has it, or it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK).open("a")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; name another one with -o run.folder=...") from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder} is in use by another `rhymed sweep`") from None
        yield
