"""The last upload of a run that has ended: what is new since the uploader's last look, and the run given back."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from rhymed.output import show

INTERRUPTED_S = 60.0  # whoever interrupts a run wants it to end
FINISHED_S = 6 * 3600.0  # a signal ends it at once


async def last_upload(config_file: Path, stop: asyncio.Event, *, patient: bool) -> str:
    """A line for people. `stop`: is set by a signal; `patient`: the run has finished."""
    show(f"upload   writing what is new{' (Ctrl-C leaves it out)' if patient else ''}", flush=True)
    command = [sys.executable, "-m", "rhymed", "upload", "--once", str(config_file)]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    writing = asyncio.create_task(process.communicate())
    stopped = asyncio.create_task(stop.wait() if patient else asyncio.sleep(INTERRUPTED_S))
    await asyncio.wait({writing, stopped}, timeout=FINISHED_S, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    again = f"the copy is as of its last backup; to complete it: rhymed upload --once {config_file}"
    if not writing.done():
        process.kill()
        await writing
        return f"upload   not completed: {again}"
    output, errors = writing.result()
    if process.returncode:
        why = errors.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("rhymed: ")
        return f"upload   not completed: {why or f'status {process.returncode}'}; {again}"
    return f"upload   {output.decode().strip()}"
