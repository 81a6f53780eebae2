"""One process at a time writes a run's checkpoints and publishes its weights: the trainer, or rank 0 of its gang.

The broker refuses a second trainer, too, but only after it has loaded and published; and a trainer that the broker
has given up may come back to life. The lock of a dead process is released by the system, whatever ended it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rhymed.errors import TrainerError

log = logging.getLogger(__name__)

LOCK = "trainer.lock"
OWNER_CHARS = 300


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Of the run in `folder`, until this ends. Raises `TrainerError` if a living process is that already."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainerError(
                f"{folder} has a trainer already{_owner(lock)}: it alone writes checkpoints and weights; end it"
                " before another one is started, or give this run another run.name"
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): start no second trainer for this run", lock.name, error.strerror)
        lock.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}", file=lock, flush=True)
        yield


def _owner(lock: TextIO) -> str:
    lock.seek(0)
    text = lock.read(OWNER_CHARS).strip()
    return f" ({text})" if text else ""
