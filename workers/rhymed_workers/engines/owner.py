"""Ends an engine's processes when the process that started them ends, however it does. Needs no engine."""

from __future__ import annotations

import os
import select
import signal
import threading

OWNER = "RHYMED_ENGINE_OWNER"
"""Environment variable with the pid of the process that started the engine."""


def end_with_owner() -> None:
    """When the owner ends, kill this process and the engine's processes between the two.

    PR_SET_PDEATHSIG would signal too early: when the parent's thread ends.
    """
    owner = int(os.environ.get(OWNER, "0"))
    if not owner or not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        raise RuntimeError(f"process {owner}, which started this engine, is gone") from None
    chain = _between(owner)

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        for pid in [*chain, os.getpid()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    threading.Thread(target=watch, name="end-with-owner", daemon=True).start()


def _between(owner: int) -> list[int]:
    """Pids between the owner and this process, the uppermost first; empty if the owner is no ancestor."""
    import psutil

    ancestors = [process.pid for process in psutil.Process().parents()]
    return ancestors[: ancestors.index(owner)][::-1] if owner in ancestors else []
