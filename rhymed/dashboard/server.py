"""Puts the dashboard of one run on an address, and takes it away again. The thin shell around `app`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from rhymed.dashboard import listen
from rhymed.dashboard.auth import Guard, token_of
from rhymed.dashboard.data.source import Desk, Source
from rhymed.dashboard.listen import Turnstile
from rhymed.dashboard.routes import App
from rhymed.dashboard.snapshots import Live
from rhymed.wire.addresses import HttpAddress

SHUTDOWN_S = 1.0  # for answers on their way
HANDOVER_S = 3.0  # for one that had the port, and dies


@contextlib.asynccontextmanager
async def serving(
    folder: Path, wanted: HttpAddress, live: Live, *, again: bool = False
) -> AsyncIterator[HttpAddress]:
    """Inside, it can be looked at there. `again`: on the port that the run's dashboard had. Raises `ConfigError`."""
    guard = Guard("" if wanted.is_local else await asyncio.to_thread(token_of, folder))
    earlier = listen.read(folder) if again else None
    bound, address = await _listen(wanted, earlier.port if earlier else 0)
    desk = Desk(Source(folder))
    runner = web.AppRunner(
        App(desk, live, guard).application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S
    )
    try:
        await runner.setup()
        made = runner.server
        assert made is not None, "it was set up"
        server = await asyncio.get_running_loop().create_server(
            Turnstile(made, lambda: len(made.connections)), sock=bound
        )
        try:
            yield address
        finally:
            server.close()
    finally:
        bound.close()
        await runner.cleanup()
        desk.close()


async def _listen(wanted: HttpAddress, earlier: int) -> tuple[listen.Socket, HttpAddress]:
    """Who had the port may be about to end: it is waited for."""
    until = time.monotonic() + HANDOVER_S
    while True:
        bound, address = await asyncio.to_thread(listen.listen, wanted, earlier)
        if not earlier or address.port == earlier or time.monotonic() > until:
            return bound, address
        bound.close()
        await asyncio.sleep(0.1)
