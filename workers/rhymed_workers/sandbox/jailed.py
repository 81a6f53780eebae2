"""A process in a jail, as its parent sees it: started, spoken to in frames over its pipes, and ended.

Its process id is that of the jail's guard (rhymed_workers.sandbox.jail), which ends as the process in it ended and
kills everything that it started. A frame is four length bytes and a body. Knows neither scorers nor environments.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Self

from rhymed.core.config import Config, Reward
from rhymed.core.errors import RhymedError
from rhymed.core.run.edited import compare
from rhymed_workers.sandbox.frames import HEAD
from rhymed_workers.sandbox.init import COUNT_S
from rhymed_workers.sandbox.jail import Spec
from rhymed_workers.sandbox.usercode import too_many

EXIT_STATUS_S = 1.0
JAIL_END_S = 8.0  # for the jail to end all that it holds
KILL_S = 10.0  # for the kernel to end a killed process
MAX_FRAME = 1 << 20  # bytes of an answer, without rewards of tokens
REPORT_BYTES = 1 << 12
JAIL_OPTIONS: dict[str, bool] = {}  # fields of rhymed_workers.sandbox.jail.Spec: what is not to be tried
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # there is a process for every core already


class ProcessEnded(Exception):
    """The process has ended, or writes what is no answer, which is handled alike."""


async def spawn(limits: Reward, child: str) -> tuple[asyncio.subprocess.Process, int]:
    """The guard of a jail with this module's `main` in it, and the descriptor of its reports."""
    report, guards_end = os.pipe()
    os.set_blocking(report, False)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rhymed_workers.sandbox.jail"),
            Spec(os.getpid(), guards_end, limits.processes_limit, child, **JAIL_OPTIONS).argument(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=(guards_end,),
            env={**ONE_THREAD, **os.environ},
        )
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(guards_end)
    return process, report


class Jailed:
    """`limits`: those of the process, for sentences about its end."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, limits: Reward) -> None:
        """`process`, `report`: as `spawn` returns them."""
        self._process, self._report, self._limits = process, report, limits
        self.pid = process.pid  # of the jail's guard
        self.alive = True  # we have not killed it
        self.exited = False  # by itself, as `explain_end` found
        self.killed = False  # by a signal that others send, too, as `explain_end` found
        self._end: dict[str, bool] = {}  # the guard's last report

    @property
    def usable(self) -> bool:
        return self.alive and self._process.returncode is None and not _has_ended(self.pid)

    @property
    def drained(self) -> bool:
        """Whether all that it wrote was read, and nothing can follow."""
        return self._process.stdout is not None and self._process.stdout.at_eof()

    async def unedited(self, folder: Path | None, config: Config, section: str, error: type[RhymedError]) -> Self:
        """Itself, which has read files of the user. Ends, and raises, if one was edited since the run was started."""
        try:
            await asyncio.to_thread(compare, folder, config, section, error)
        except BaseException:
            await self.kill()
            raise
        return self

    async def kill(self) -> None:
        """End the process and all that it started, and wait for it, also when cancelled. A second call only waits."""
        ending = asyncio.ensure_future(self._kill())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _kill(self) -> None:
        if self.alive:  # else its id may belong to another process by now
            self.alive = False
            with contextlib.suppress(ProcessLookupError):
                if not _has_ended(self.pid):  # else the signal's sender would take the status from asyncio
                    self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), JAIL_END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), KILL_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._end = self._end or self._read_report()
        if self._report >= 0:
            os.close(self._report)
            self._report = -1

    async def explain_end(self, error: Exception) -> str:
        """How it ended."""
        await self.ends()
        code, ended = self._process.returncode, self.drained
        await self.kill()
        self.killed = (code in (-signal.SIGKILL, -signal.SIGTERM) or (code is None and ended)) and not self.reason()
        if code is None:
            return f"{error}{self.reason()}"
        self.exited = code >= 0
        if self.exited:
            return f"exit status {code}{self.reason()}"
        hints: dict[int, str] = {
            signal.SIGXFSZ: f": it wrote a file larger than {self._limits.file_mib} MiB (reward.file_mib)",
            signal.SIGKILL: " (what the kernel sends when the machine's memory is used up)",
        }
        return f"signal {_name(-code)}{self.reason() or hints.get(-code, '')}"

    async def ends(self) -> bool:
        """Whether it has ended. Its exit status comes a moment after its pipe closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_STATUS_S)
        return self._process.returncode is not None

    def ended_itself(self, error: Exception) -> bool:
        """Whether its code is at fault, after `explain_end(error)`: it exited, or wrote what cannot be read. Of a
        process that is slow to end, as on a machine without memory, it is not known what ended it."""
        return self.exited or not isinstance(error, ProcessEnded)

    def reason(self) -> str:
        """Why the guard ended it; empty if it did not."""
        return f": {too_many(self._limits)}" if self._end.get("too_many") else ""

    def isolation(self) -> str:
        """How it is isolated, as a sentence."""
        report = self._read_report()
        where = "in PID namespaces of their own" if report.get("isolated") else "without namespaces (refused here)"
        count = (
            "limited by a cgroup" if report.get("group") else f"counted every {COUNT_S:g} s (no cgroup can be made)"
        )
        return f"scoring processes run {where}; the number of processes they may start is {count}"

    def _read_report(self) -> dict[str, bool]:
        """What the guard has reported since the last call."""
        with contextlib.suppress(OSError, ValueError):
            lines = os.read(self._report, REPORT_BYTES).splitlines()
            return {key: value for line in lines for key, value in json.loads(line).items()}
        return {}

    async def write(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(HEAD.pack(len(body)) + body)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:  # uvloop: RuntimeError on a closed transport
            raise ProcessEnded(str(error)) from None

    async def read(self, more_bytes: int = 0) -> bytes:
        assert self._process.stdout is not None
        try:
            (length,) = HEAD.unpack(await self._process.stdout.readexactly(HEAD.size))
            if length > MAX_FRAME + more_bytes:
                raise ProcessEnded(f"a frame of {length} bytes")
            return await self._process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessEnded("a closed pipe") from None


def _name(number: int) -> str:
    """Of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _has_ended(pid: int) -> bool:
    """Asks the kernel, since asyncio learns it a moment later. Leaves the exit status to asyncio."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # asyncio has it
        return True
