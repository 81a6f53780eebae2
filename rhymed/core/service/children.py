"""Child processes that are kept alive: the pause before a restart, why one ended, and how it is stopped.

Each caller owns its own loop, since what counts as a failure differs. Scoring processes are not stopped here: their
jail must first end what runs in it, and a pool never waits for one without a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

TAIL_BYTES = 64 << 10
OURS = "rhymed: "  # beginning of an error of rhymed on standard error
FATAL = "Fatal Python error: "
MOST_LINES = 20  # of such an error


def restart_pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Doubles with every failure in a row."""
    return min(longest_s, first_s * 2.0 ** min(64, max(0, failures - 1)))


def exit_reason(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return f"signal {signal.Signals(-status).name if -status in set(signal.Signals) else -status}"


def last_lines(log: Path, *, start: int = 0, most_bytes: int = TAIL_BYTES) -> list[str]:
    """The end of what a process wrote from byte `start` on, without empty lines. Raises `OSError`."""
    with log.open("rb") as file:
        return lines_of(file, start=start, most_bytes=most_bytes)


def lines_of(file: BinaryIO, *, start: int = 0, most_bytes: int = TAIL_BYTES) -> list[str]:
    """As `last_lines`, of an open file, which may have lost its name."""
    file.seek(max(start, file.seek(0, os.SEEK_END) - most_bytes))
    return [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def last_words(lines: Sequence[str]) -> str:
    """The error in the lines that a process wrote: its own error, which may have several, else the last line."""
    starts = [number for number, line in enumerate(lines) if line.startswith(OURS)]
    fatal = next((line for line in lines if line.startswith(FATAL)), "")  # the interpreter's; then a traceback
    last = [fatal] if fatal else lines[-1:]
    own = lines[starts[-1] :][:MOST_LINES] if starts and len(lines) - starts[-1] <= MOST_LINES else last
    return " ".join(own).removeprefix(OURS)


def terminate(process: Process | None) -> None:
    """Ask the process alone: it ends its own children after it has returned their work."""
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


def kill_session(process: Process | None) -> None:
    """Everything in the session that the process leads, also after it has ended itself."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def wait_or_kill(process: Process, deadline_s: float, *, session: bool) -> None:
    """For a process that was asked to end; after the deadline it is killed, or the session that it leads."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), deadline_s)
    if process.returncode is None:
        if session:
            kill_session(process)
        else:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
