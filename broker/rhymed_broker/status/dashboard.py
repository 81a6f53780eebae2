"""Runs the dashboard (`rhymed.show.dashboard`) as a process next to the broker, and restarts it.

Invariant: a failure of the dashboard does not affect the run. It reads the run's folder itself; from the broker it
requests snapshots of the queues, at most every `LEAST_S`. That is its whole cost to the broker's event loop, for any
number of pages. A dashboard that cannot start is a warning, and the run continues without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from rhymed.core.run.layout import ADDRESS_FILE, RunLayout
from rhymed.core.service.children import exit_reason, restart_pause_s, terminate, wait_or_kill

log = logging.getLogger(__name__)

LEAST_S = 0.5
LONG_S = 60.0  # a process that ran for so long counts as no failure
MOST_FAILURES = 5  # in a row
STOP_S = 4.0  # for the process to show its pages the end of the run
REFUSED = "!"  # precedes the reason why there is no dashboard
REQUEST = "?"  # requests a snapshot; any other line is its address

Snapshot = Callable[[], Awaitable[msgspec.Struct]]


class Dashboard:
    """`address`: net.http; empty: no dashboard. Nor is there one without the run's folder on this machine."""

    def __init__(self, address: str, places: RunLayout, snapshot: Snapshot) -> None:
        self._refused = False  # it reported that it cannot start
        self._address, self._places, self._snapshot = address, places, snapshot

    async def run(self) -> None:
        """Until cancelled, or until it has failed too often."""
        if not self._address or not self._places.config.exists():
            return
        try:
            await self._keep()
        finally:  # a killed broker leaves the file, and the next one takes the same port
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
            log.warning("the dashboard ended (%s) and is restarted", reason)
            await asyncio.sleep(restart_pause_s(failures, 1.0, LONG_S))
        log.warning("there is no dashboard: %s; the run continues without it", reason)

    async def _once(self) -> str:
        """One process; returns why it ended."""
        async with self._process() as process:
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            async for line in process.stdout:
                text = line.decode(errors="replace").strip()
                if text.startswith(REFUSED):
                    self._refused = True
                    return text.removeprefix(REFUSED)
                if text != REQUEST:
                    log.info("dashboard at %s", text)
                    continue
                body = msgspec.msgpack.encode(await self._snapshot())
                process.stdin.write(len(body).to_bytes(4, "big") + body)
                await process.stdin.drain()
                await asyncio.sleep(LEAST_S)
            return f"{exit_reason(await process.wait())}, see {self._places.log('dashboard')}"

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rhymed.show.dashboard",
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
