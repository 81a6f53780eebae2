"""Scoring subprocesses that can be killed.

A scorer runs user code and symbolic algebra over whatever a model wrote: it may hang, crash, print, exit or eat
memory. Each runs in a child with a session of its own; at `reward.timeout_s` the whole process group is killed. A
child that died is replaced, and one more than is used at a time is kept warm, since importing a scorer takes seconds.
Every item ends in exactly one `Outcome`, and what one item does to its child hurts no other. What the child does is
in `rhymed_workers.child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from typing import Any, Self

import msgspec

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed_workers.blame import hung_at
from rhymed_workers.child import HEAD, Item, Ready
from rhymed_workers.outcome import Outcome, Verdict, combine

log = logging.getLogger(__name__)

START_S = 120.0  # for a child to import its scorer, on a loaded machine
LOOK_S = 0.5
OUTERMOST = b"in _run_module_as_main"  # ends the list of a child's frames
AUTOPSY_S = 1.0
DEATH_S = 10.0  # for the kernel to bury a killed child
MAX_STARTS = 3  # failed starts in a row after which the pool is broken
RESTART_S = 1.0
MAX_FRAME = 1 << 28  # bytes
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # there is a process for every core already


class Dead(Exception):
    """The child has ended, or talks nonsense, which comes to the same."""


class Child:
    """One subprocess: started, asked for one scorer's verdict at a time, killed."""

    def __init__(self, process: asyncio.subprocess.Process, config: Config) -> None:
        self._process = process
        self._scorers = config.reward.all
        self._timeout_s = config.reward.timeout_s
        self.pid = process.pid
        self.alive = True  # as far as we have done nothing about it

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> Child:
        """Returns when the scorers are loaded. Raises `RewardError` when one cannot be."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rhymed_workers.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**ONE_THREAD, **os.environ},
        )
        child = cls(process, config)
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
            raise RewardError(f"loading scorer {self._names}: the process ended with {ended}") from None
        if ready.error is not None:
            raise RewardError(ready.error)

    @property
    def _names(self) -> str:
        return ", ".join(one.scorer for one in self._scorers)

    @property
    def usable(self) -> bool:
        return self.alive and self._process.returncode is None and not _ended(self.pid)

    async def score(self, item: Item, scorer: int) -> Verdict:
        """Of the scorer with this index; it may take `reward.timeout_s`.

        The child is dead afterwards if it hung, crashed or the caller was cancelled: ask `usable`.
        """
        try:
            verdict = await self._ask(msgspec.structs.replace(item, scorer=scorer), self._scorers[scorer].scorer)
        except BaseException:
            await self.kill()
            raise
        return msgspec.structs.replace(verdict, label=self._scorers[scorer].label)

    async def _ask(self, item: Item, name: str) -> Verdict:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._write(msgspec.msgpack.encode(item))
                return msgspec.msgpack.decode(await self._read(), type=Verdict)
        except TimeoutError:
            place = hung_at(await self._look(), name.rpartition(":")[0])
            await self.kill()
            error, late = (
                f"{name} took longer than reward.timeout_s = {self._timeout_s:g} s and was killed{place}",
                True,
            )
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
        """Kill the process and all that it started, and wait for its end. Again: only wait."""
        if self.alive:  # else its id may be another's by now
            self.alive = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), DEATH_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _autopsy(self, error: Exception) -> str:
        """How it ended; its exit status comes a moment after its pipe closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), AUTOPSY_S)
        code = self._process.returncode
        await self.kill()
        if code is None:
            return str(error)
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

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


class Pool:
    """`async with Pool(config) as pool: outcome = await pool.score(item(text, row))`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._slots = asyncio.Semaphore(config.reward.processes)
        self._children: set[Child] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Raises `RewardError` if a scorer cannot be loaded. The spare follows later."""
        try:
            self._add(await Child.start(self._config))  # alone first: one error, not one a process
            for _ in range(self._config.reward.processes):
                self._replace()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        await asyncio.gather(*(child.kill() for child in self._children))
        self._children.clear()
        if self._broken.done():
            self._broken.exception()  # seen
        else:
            self._broken.cancel()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children."""
        return [child.pid for child in self._children if child.usable]

    async def score(self, item: Item) -> Outcome:
        """Wait for a free child, then at most `reward.timeout_s` a scorer; the first error ends it.

        Raises `RewardError` only if the pool is broken.
        """
        scorers = self._config.reward.all
        verdicts: list[Verdict] = []
        async with self._slots:
            child = await self._take()
            try:
                for number in range(len(scorers)):
                    verdicts.append(await child.score(item, number))
                    if verdicts[-1].error is not None:
                        break
                return combine(scorers, verdicts)
            finally:
                if child.usable:
                    self._idle.put_nowait(child)
                else:
                    self._bury(child)

    async def _take(self) -> Child:
        while True:
            getting = asyncio.ensure_future(self._idle.get())
            either: set[asyncio.Future[Any]] = {getting, self._broken}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                if not getting.cancel() and not getting.cancelled():
                    self._idle.put_nowait(getting.result())
                raise
            if not getting.done():
                getting.cancel()
                self._broken.result()
            child = getting.result()
            if child.usable:
                return child
            self._bury(child)  # it died while it had nothing to do: nobody's fault that we know

    def _add(self, child: Child) -> None:
        self._children.add(child)
        self._idle.put_nowait(child)

    def _bury(self, child: Child) -> None:
        self._children.discard(child)
        self._replace()

    def _replace(self) -> None:
        task = asyncio.get_running_loop().create_task(self._start_one())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _start_one(self) -> None:
        for attempt in range(1, MAX_STARTS + 1):
            try:
                self._add(await Child.start(self._config))
                return
            except (RewardError, OSError) as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                if attempt == MAX_STARTS and not self.pids and not self._broken.done():
                    self._broken.set_exception(RewardError(f"no scoring process can be started: {error}"))
                await asyncio.sleep(RESTART_S)
