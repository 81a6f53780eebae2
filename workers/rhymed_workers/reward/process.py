"""One scoring subprocess as its pool sees it: started in a cage, asked for one scorer's verdict at a time, ended.

Its process id is that of the cage's warden (rhymed_workers.scoring.jail), which ends as the scorer ended and takes all with
it that the scorer started. Whatever happens in there, the answer to a question is a `Verdict`: a time-out, a crash
and nonsense on the pipe are errors in words.
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
from rhymed_workers.scoring.jail import WATCH_S, Spec
from rhymed_workers.scoring.verdict import Verdict

log = logging.getLogger(__name__)

START_S = 120.0  # for a child to import its scorer, on a loaded machine
MAX_STARTS = 3  # failed starts in a row after which it is the scorer's fault
RESTART_S = 1.0
LOOK_S = 0.5
OUTERMOST = b"in _run_module_as_main"  # ends the list of a child's frames
AUTOPSY_S = 1.0
MERCY_S = 8.0  # for a cage to end all that is in it
DEATH_S = 10.0  # for the kernel to bury a killed child
MAX_FRAME = 1 << 20  # bytes of an answer
NOTES_BYTES = 1 << 12
ALLOWED: dict[str, bool] = {}  # of rhymed_workers.scoring.jail.Spec: what is not to be tried
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # there is a process for every core already


class Dead(Exception):
    """The child has ended, or talks nonsense, which comes to the same."""


class Child:
    """One subprocess: started, asked for one scorer's verdict at a time, killed."""

    def __init__(self, process: asyncio.subprocess.Process, config: Config, notes: int) -> None:
        self._process = process
        self._reward = config.reward
        self._scorers = config.reward.all
        self._notes = notes
        self._asked = 0
        self.pid = process.pid  # of the cage's warden
        self.alive = True  # as far as we have done nothing about it
        self.worn = ""  # why it should get no other item
        self.said: list[str] = []  # what holds it, and what its scorers say about themselves
        self._ended: dict[str, bool] = {}

    @classmethod
    async def start_patiently(cls, config: Config) -> Child:
        """Try again when something kills it while it loads: if the scorer does that, it does so every time."""
        for attempt in range(1, MAX_STARTS):
            try:
                return await cls.start(config)
            except ScorerKilled as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                await asyncio.sleep(RESTART_S)
        return await cls.start(config)

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> Child:
        """Returns when the scorers are loaded. Raises `RewardError` when one cannot be."""
        notes, told = os.pipe()
        os.set_blocking(notes, False)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rhymed_workers.scoring.jail"),
                Spec(os.getpid(), told, config.reward.processes_limit, **ALLOWED).argument(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=(told,),
                env={**ONE_THREAD, **os.environ},
            )
        except BaseException:
            os.close(notes)
            raise
        finally:
            os.close(told)
        child = cls(process, config, notes)
        try:
            await child._load(config, deadline_s)
        except BaseException:  # also a second one, while the first is being told
            await child.kill()
            raise
        return child

    async def _load(self, config: Config, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await self._write(config.model_dump_json().encode())
                ready = msgspec.msgpack.decode(await self._read(), type=Ready)
        except TimeoutError:
            raise RewardError(f"scorer {self._names} was not loaded within {deadline_s:g} s") from None
        except (Dead, msgspec.MsgspecError) as error:
            ended = await self._autopsy(error)
            kind = ScorerKilled if ended.startswith("signal") else RewardError
            raise kind(f"loading scorer {self._names}: the process ended with {ended}") from None
        if ready.error is not None:
            raise RewardError(ready.error)
        self.said = [_protection(self._told()), *ready.notes]

    @property
    def _names(self) -> str:
        return ", ".join(one.scorer for one in self._scorers)

    @property
    def usable(self) -> bool:
        return self.alive and self._process.returncode is None and not _ended(self.pid)

    @property
    def fresh(self) -> bool:
        """No item has been in it."""
        return self._asked == 0

    async def score(self, item: Item, scorer: int) -> Verdict:
        """Of the scorer with this index; it may take `reward.timeout_s`.

        The child is dead afterwards if it hung, crashed or the caller was cancelled: ask `usable`.
        """
        self._asked += 1
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
                answer = msgspec.msgpack.decode(await self._read(), type=Answer)
                if answer.number != work.number:
                    raise Dead("an answer that it was not asked for")
                self.worn = answer.worn
                return answer.verdict
        except TimeoutError:
            place = hung_at(await self._look(), name.rpartition(":")[0])
            await self.kill()
            text = f"{name} took longer than reward.timeout_s = {limit_s:g} s and was killed{place}{self._why()}"
            error, late = text, True
        except (Dead, msgspec.MsgspecError) as nonsense:
            error, late = f"{name}: the scoring process ended with {await self._autopsy(nonsense)}", False
        return Verdict(error=error, timeout=late, seconds=time.monotonic() - began)

    async def _look(self) -> str:
        """What the child is doing at this moment, in faulthandler's words; empty if it does not say."""
        assert self._process.stdout is not None
        text = b""
        with contextlib.suppress(TimeoutError, ProcessLookupError, ConnectionError):
            self._process.send_signal(signal.SIGUSR1)
            async with asyncio.timeout(LOOK_S):
                while OUTERMOST not in text and (more := await self._process.stdout.read(1 << 16)):
                    text += more
        return text.decode(errors="replace")

    async def kill(self) -> None:
        """End the process and all that it started, and wait for it. Again: only wait."""
        if self.alive:  # else its id may be another's by now
            self.alive = False
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), MERCY_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), DEATH_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._ended = self._ended or self._told()
        if self._notes >= 0:
            os.close(self._notes)
            self._notes = -1

    async def _autopsy(self, error: Exception) -> str:
        """How it ended; its exit status comes a moment after its pipe closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), AUTOPSY_S)
        code = self._process.returncode
        await self.kill()
        if code is None:
            return f"{error}{self._why()}"
        if code >= 0:
            return f"exit status {code}{self._why()}"
        hints = {signal.SIGXFSZ: f": it wrote a file larger than {self._reward.file_mib} MiB (reward.file_mib)"}
        hints[signal.SIGKILL] = " (what the kernel sends when the machine's memory is used up)"
        return f"signal {signal.Signals(-code).name}{self._why() or hints.get(signal.Signals(-code), '')}"

    def _why(self) -> str:
        """What the cage said at the end."""
        return f": {too_many(self._reward)}" if self._ended.get("too_many") else ""

    def _told(self) -> dict[str, bool]:
        """By the cage since it was last asked."""
        with contextlib.suppress(OSError, ValueError):
            lines = os.read(self._notes, NOTES_BYTES).splitlines()
            return {key: value for line in lines for key, value in json.loads(line).items()}
        return {}

    async def _write(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(HEAD.pack(len(body)) + body)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:  # uvloop: RuntimeError on a closed transport
            raise Dead(str(error)) from None

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        try:
            (length,) = HEAD.unpack(await self._process.stdout.readexactly(HEAD.size))
            if length > MAX_FRAME:
                raise Dead(f"a frame of {length} bytes")
            return await self._process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Dead("a closed pipe") from None


def _ended(pid: int) -> bool:
    """What the kernel says, which asyncio hears of a moment later. Leaves the exit status to asyncio."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # asyncio has it
        return True


def _protection(told: dict[str, bool]) -> str:
    """What the cage can enforce here, in words."""
    apart = "in PID namespaces of their own" if told.get("isolated") else "without namespaces (refused here)"
    count = "bounded by a cgroup" if told.get("group") else f"counted every {WATCH_S:g} s (no cgroup can be made)"
    return f"scoring processes run {apart}; how many they may start is {count}"
