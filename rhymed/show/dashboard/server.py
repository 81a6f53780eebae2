"""Serves a dashboard at an address, until it is stopped. The thin shell around `routes`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from rhymed.core.http import CONNECTIONS, IDLE_S, LINGER_S, Connections, quiet_log
from rhymed.core.tasks import watched
from rhymed.core.wire.addresses import HttpAddress
from rhymed.show.dashboard import listen
from rhymed.show.dashboard.auth import AccessControl, keep_token, token_of
from rhymed.show.dashboard.data.source import Source
from rhymed.show.dashboard.data.thread import SourceThread
from rhymed.show.dashboard.routes import App
from rhymed.show.dashboard.snapshots import LiveRun

SHUTDOWN_S = 1.0  # for answers in progress
HANDOVER_S = 3.0  # for the previous dashboard to free its port
LOOK_S = 1.0  # between looks at the token's file


@contextlib.asynccontextmanager
async def serving(
    folder: Path, wanted: HttpAddress, live: LiveRun, *, again: bool = False
) -> AsyncIterator[HttpAddress]:
    """Yields the address. `again`: prefer the port that the run's dashboard had. Raises `ConfigError`."""
    access = await access_of(folder, wanted)
    earlier = listen.read(folder) if again else None
    thread = SourceThread(Source(folder))
    keeping = watched(_keep_token(folder, access))
    try:
        async with published(
            App(thread, live, access).application, wanted, earlier.port if earlier else 0
        ) as address:
            yield address
    finally:
        keeping.cancel()
        thread.close()


async def _keep_token(folder: Path, access: AccessControl) -> None:
    while access.token:
        await asyncio.sleep(LOOK_S)
        with contextlib.suppress(OSError):  # a full disk: later
            await asyncio.to_thread(keep_token, folder, access.token)


async def access_of(folder: Path, wanted: HttpAddress) -> AccessControl:
    """With the token of this folder, unless the address is a loopback one. Raises `ConfigError`."""
    return AccessControl("" if wanted.is_local else await asyncio.to_thread(token_of, folder))


@contextlib.asynccontextmanager
async def published(
    application: web.Application, wanted: HttpAddress, earlier: int = 0
) -> AsyncIterator[HttpAddress]:
    """`earlier`: the preferred port. Raises `ConfigError`."""
    bound, address = await _listen(wanted, earlier)
    connections = application[CONNECTIONS] = Connections()
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_S,
        logger=quiet_log(),
        keepalive_timeout=IDLE_S,
        lingering_time=LINGER_S,
    )
    try:
        await runner.setup()
        protocols = runner.server
        assert protocols is not None, "it was set up"
        server = await asyncio.get_running_loop().create_server(
            connections.factory(protocols), sock=bound, backlog=listen.BACKLOG
        )
        try:
            yield address
        finally:
            server.close()
    finally:
        bound.close()
        await runner.cleanup()
        connections.close()


async def _listen(wanted: HttpAddress, earlier: int) -> tuple[listen.Socket, HttpAddress]:
    """Waits a little for the process that had the port: it may be about to end."""
    until = time.monotonic() + HANDOVER_S
    while True:
        bound, address = await asyncio.to_thread(listen.listen, wanted, earlier)
        if not earlier or address.port == earlier or time.monotonic() > until:
            return bound, address
        bound.close()
        await asyncio.sleep(0.1)
