"""One scoring process as its pool sees it: started in a jail, asked for one verdict at a time, ended.

Its process id is that of the jail's guard (rhymed_workers.scoring.jail), which ends as the scoring process ended and
kills everything that the scorer started. Whatever happens inside, each item gets a `Verdict`: time-outs, crashes and
malformed answers become errors in words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
import time

import msgspec

from rhymed.config import Config
from rhymed.errors import RewardError, ScorerKilled
from rhymed_workers.scorers.explain import hung_at, too_many
from rhymed_workers.scoring.child import HEAD, Answer, Item, Ready
from rhymed_workers.scoring.init import COUNT_S
from rhymed_workers.scoring.jail import Spec
from rhymed_workers.scoring.verdict import Verdict

log = logging.getLogger(__name__)

START_S = 120.0  # to import its scorers, on a loaded machine
MAX_STARTS = 3  # failed starts in a row after which the scorer is at fault
RESTART_S = 1.0
TRACEBACK_S = 0.5
OUTERMOST = b"in _run_module_as_main"  # the last frame of a traceback
EXIT_STATUS_S = 1.0
JAIL_END_S = 8.0  # for the jail to end all that it holds
KILL_S = 10.0  # for the kernel to end a killed process
MAX_FRAME = 1 << 20  # bytes of an answer, without token weights
REPORT_BYTES = 1 << 12
JAIL_OPTIONS: dict[str, bool] = {}  # fields of rhymed_workers.scoring.jail.Spec: what is not to be tried
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # there is a process for every core already


class ProcessEnded(Exception):
    """The scoring process has ended, or writes what is no answer, which is handled alike."""


class ScoringProcess:
    """Started, asked for one scorer's verdict at a time, killed."""

    def __init__(self, process: asyncio.subprocess.Process, config: Config, report: int) -> None:
        self._process = process
        self._reward = config.reward
        self._scorers = config.reward.all
        self._report = report  # file descriptor, of the guard's reports
        self._items = 0
        self.pid = process.pid  # of the jail's guard
        self.alive = True  # we have not killed it
        self.defect = ""  # why it must not get another item
        self.notes: list[str] = []  # how it is isolated, and what its scorers report about themselves
        self.warnings: list[str] = []
        self._end: dict[str, bool] = {}  # the guard's last report

    @classmethod
    async def start_with_retries(cls, config: Config) -> ScoringProcess:
        """Start again if something kills it while it loads. If the scorer does that, it does so every time."""
        for attempt in range(1, MAX_STARTS):
            try:
                return await cls.start(config)
            except ScorerKilled as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                await asyncio.sleep(RESTART_S)
        return await cls.start(config)

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> ScoringProcess:
        """Returns when the scorers are loaded. Raises `RewardError` when one cannot be."""
        report, guards_end = os.pipe()
        os.set_blocking(report, False)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rhymed_workers.scoring.jail"),
                Spec(os.getpid(), guards_end, config.reward.processes_limit, **JAIL_OPTIONS).argument(),
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
        started = cls(process, config, report)
        try:
            await started._load(config, deadline_s)
        except BaseException:  # also a cancellation while an earlier error is being explained
            await started.kill()
            raise
        return started

    async def _load(self, config: Config, deadline_s: float) -> None:
        names = ", ".join(scorer.scorer for scorer in self._scorers)
        try:
            async with asyncio.timeout(deadline_s):
                await self._write(config.model_dump_json().encode())
                ready = msgspec.msgpack.decode(await self._read(), type=Ready)
        except TimeoutError:
            raise RewardError(f"scorer {names} was not loaded within {deadline_s:g} s") from None
        except (ProcessEnded, msgspec.MsgspecError) as error:
            end = await self._explain_end(error)
            kind = ScorerKilled if end.startswith("signal") else RewardError
            raise kind(f"loading scorer {names}: the process ended with {end}") from None
        if ready.error is not None:
            raise RewardError(ready.error)
        self.notes = [_isolation(self._read_report()), *ready.notes]
        self.warnings = ready.warnings

    @property
    def usable(self) -> bool:
        return self.alive and self._process.returncode is None and not _has_ended(self.pid)

    @property
    def fresh(self) -> bool:
        """It has scored no item yet."""
        return self._items == 0

    async def score(self, item: Item, scorer: int) -> Verdict:
        """Verdict of the scorer with this index, within `reward.timeout_s`.

        The process is dead afterwards if it hung, crashed or the caller was cancelled: check `usable`.
        """
        self._items += 1
        work = msgspec.structs.replace(item, scorer=scorer, number=secrets.randbits(63))
        try:
            verdict = await self._ask(work, self._scorers[scorer].scorer)
        except BaseException:
            await self.kill()
            raise
        return msgspec.structs.replace(verdict, label=self._scorers[scorer].label)

    async def _ask(self, work: Item, name: str) -> Verdict:
        began, limit_s = time.monotonic(), self._reward.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._write(msgspec.msgpack.encode(work))
                answer = msgspec.msgpack.decode(await self._read(len(work.tokens)), type=Answer)
                if answer.number != work.number:
                    raise ProcessEnded("an answer that it was not asked for")
                if len(answer.verdict.token_weights) not in (0, len(work.tokens)):
                    raise ProcessEnded("weights of other tokens")
                self.defect = answer.defect
                return answer.verdict
        except TimeoutError:
            place = hung_at(await self._traceback(), name.rpartition(":")[0])
            await self.kill()
            text = f"{name} took longer than reward.timeout_s = {limit_s:g} s and was killed{place}{self._reason()}"
            error, late = text, True
        except (ProcessEnded, msgspec.MsgspecError) as reason:
            error, late = f"{name}: the scoring process ended with {await self._explain_end(reason)}", False
        return Verdict(error=error, timeout=late, seconds=time.monotonic() - began)

    async def _traceback(self) -> str:
        """Where the scorer is now, as faulthandler writes it; empty if it does not answer."""
        assert self._process.stdout is not None
        text = b""
        with contextlib.suppress(TimeoutError, ProcessLookupError, ConnectionError):
            self._process.send_signal(signal.SIGUSR1)
            async with asyncio.timeout(TRACEBACK_S):
                while OUTERMOST not in text and (more := await self._process.stdout.read(1 << 16)):
                    text += more
        return text.decode(errors="replace")

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

    async def _explain_end(self, error: Exception) -> str:
        """How it ended. Its exit status comes a moment after its pipe closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_STATUS_S)
        code = self._process.returncode
        await self.kill()
        if code is None:
            return f"{error}{self._reason()}"
        if code >= 0:
            return f"exit status {code}{self._reason()}"
        hints = {signal.SIGXFSZ: f": it wrote a file larger than {self._reward.file_mib} MiB (reward.file_mib)"}
        hints[signal.SIGKILL] = " (what the kernel sends when the machine's memory is used up)"
        return f"signal {signal.Signals(-code).name}{self._reason() or hints.get(signal.Signals(-code), '')}"

    def _reason(self) -> str:
        """Why the guard ended it; empty if it did not."""
        return f": {too_many(self._reward)}" if self._end.get("too_many") else ""

    def _read_report(self) -> dict[str, bool]:
        """What the guard has reported since the last call."""
        with contextlib.suppress(OSError, ValueError):
            lines = os.read(self._report, REPORT_BYTES).splitlines()
            return {key: value for line in lines for key, value in json.loads(line).items()}
        return {}

    async def _write(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(HEAD.pack(len(body)) + body)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:  # uvloop: RuntimeError on a closed transport
            raise ProcessEnded(str(error)) from None

    async def _read(self, weights_bytes: int = 0) -> bytes:
        assert self._process.stdout is not None
        try:
            (length,) = HEAD.unpack(await self._process.stdout.readexactly(HEAD.size))
            if length > MAX_FRAME + weights_bytes:
                raise ProcessEnded(f"a frame of {length} bytes")
            return await self._process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessEnded("a closed pipe") from None


def _has_ended(pid: int) -> bool:
    """Asks the kernel, since asyncio learns it a moment later. Leaves the exit status to asyncio."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # asyncio has it
        return True


def _isolation(report: dict[str, bool]) -> str:
    where = "in PID namespaces of their own" if report.get("isolated") else "without namespaces (refused here)"
    count = "limited by a cgroup" if report.get("group") else f"counted every {COUNT_S:g} s (no cgroup can be made)"
    return f"scoring processes run {where}; the number of processes they may start is {count}"
