"""The dashboard beside the broker: a process of its own (`rhymed.dashboard`) that is started, fed and started again.

Invariant: nothing that happens to it, or in it, reaches the run. It reads the run's folder by itself; from here it
gets snapshots of the queues, when it asks and not more often than every `LEAST_S`. That is all that a page costs the
broker's event loop, however many look. A dashboard that cannot be is a warning, and the run goes on without.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from rhymed.run.layout import ADDRESS_FILE, RunLayout
from rhymed.service.children import exit_reason, restart_pause_s, terminate, wait_or_kill

log = logging.getLogger(__name__)

LEAST_S = 0.5
LONG_S = 60.0  # one that lived so long was no failure
MOST_FAILURES = 5  # in a row
STOP_S = 4.0  # in which it tells its pages how the run ended
REFUSED = "!"  # before the reason why there is none
ASKED = "?"  # for a snapshot; anything else that it says is its address

Snapshot = Callable[[], msgspec.Struct]


class Dashboard:
    """`address` as in net.http; empty: there is none. Nor is there one without a run's folder on this machine."""

    def __init__(self, address: str, places: RunLayout, snapshot: Snapshot) -> None:
        self._refused = False  # it said that it cannot be
        self._address, self._places, self._snapshot = address, places, snapshot

    async def run(self) -> None:
        """Until cancelled, or until there is nothing to try any more."""
        if not self._address or not self._places.config.exists():
            return
        try:
            await self._keep()
        finally:  # who is killed does not come here: the next broker takes the same port
            with contextlib.suppress(OSError):
                (self._places.folder / ADDRESS_FILE).unlink(missing_ok=True)

    async def _keep(self) -> None:
        failures, reason = 0, ""
        while failures < MOST_FAILURES:
            begun = time.monotonic()
            try:
                reason = await self._once()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if self._refused:
                break
            failures = 1 if time.monotonic() > begun + LONG_S else failures + 1
            log.warning("the dashboard ended (%s); it is started again", reason)
            await asyncio.sleep(restart_pause_s(failures, 1.0, LONG_S))
        log.warning("there is no dashboard: %s; the run goes on without", reason)

    async def _once(self) -> str:
        """One life of it; why that ended."""
        async with self._process() as process:
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            async for line in process.stdout:
                told = line.decode(errors="replace").strip()
                if told.startswith(REFUSED):
                    self._refused = True
                    return told.removeprefix(REFUSED)
                if told != ASKED:
                    log.info("dashboard at %s", told)
                    continue
                body = msgspec.msgpack.encode(self._snapshot())
                process.stdin.write(len(body).to_bytes(4, "big") + body)
                await process.stdin.drain()
                await asyncio.sleep(LEAST_S)
            return f"{exit_reason(await process.wait())}, see {self._places.log('dashboard')}"

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rhymed.dashboard",
            str(self._places.folder),
            self._address,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            terminate(process)
            await wait_or_kill(process, STOP_S, session=False)
