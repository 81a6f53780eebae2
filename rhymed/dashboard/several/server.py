"""Serves the dashboard of several runs at an address, until it is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rhymed.dashboard.server import access_of, published
from rhymed.dashboard.several.registry import LiveOf
from rhymed.dashboard.several.routes import SeveralApp
from rhymed.wire.addresses import HttpAddress


@contextlib.asynccontextmanager
async def serving_several(place: Path, wanted: HttpAddress, live_of: LiveOf) -> AsyncIterator[HttpAddress]:
    """Yields the address. `place`: the folder of the runs; on an address that is not loopback, the token is in it.
    Raises `ConfigError`."""
    app = SeveralApp(place, live_of, await access_of(place, wanted))
    async with published(app.application, wanted) as address:
        yield address
