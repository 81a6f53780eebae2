"""Asks a living run for its queues."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.errors import WireError
from rhymed.messages import GetQueues, Queues
from rhymed.run.layout import RunLayout
from rhymed.wire.sockets import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rhymed.messages import Queues
    from rhymed.run.layout import RunLayout


DEADLINE_S = 5.0
REFRESH_S = 1.0
PATIENCE_S = 60.0  # with a broker that was there and does not answer: it may be starting again


def layout_of_folder(folder: Path) -> RunLayout:
    """Of the run in this folder."""
    from rhymed.config.load import load_run
    from rhymed.errors import ConfigError
    from rhymed.run.layout import layout_of

    file = folder / "config.json"
    if not os.path.exists(file):  # nor may it be seen
        raise ConfigError(f"{file} does not exist: name the run's folder with --run, or --broker ADDRESS")
    return layout_of(load_run(folder))


async def queue_snapshots(client: Any, address: str, watch: bool) -> AsyncIterator[Queues]:
    """One, or one a second until the run is over. A broker that answered once may start again meanwhile."""
    import asyncio

    from rhymed.errors import DeadlineExceeded, PeerGone
    from rhymed.wire.addresses import removed

    snapshot = await ask_once(client, address)
    yield snapshot
    heard = time.monotonic()
    while watch and not snapshot.finished:
        await asyncio.sleep(REFRESH_S)
        try:
            snapshot = await _ask(client, address)
        except (DeadlineExceeded, PeerGone):
            if removed(address):
                return
            if time.monotonic() - heard > PATIENCE_S:
                raise
            continue
        heard = time.monotonic()
        yield snapshot


async def ask_once(client: Any, address: str) -> Queues:
    """Raises what tells a person where else to look, when nobody answers."""
    from rhymed.errors import ConfigError
    from rhymed.wire.addresses import removed

    if removed(address):
        raise ConfigError(f"no run is alive at {address}: it has ended, or not begun; --run FOLDER names another")
    return await _ask(client, address)


async def _ask(client: Any, address: str) -> Queues:
    from rhymed.errors import DeadlineExceeded
    from rhymed.messages import GetQueues, Queues

    try:
        answer = (await client.request(GetQueues(), deadline_s=DEADLINE_S)).message
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"no broker answered at {address} within {DEADLINE_S:g} s: is the run alive? `rhymed run` starts one;"
            " --run FOLDER or --broker ADDRESS names another"
        ) from None
    assert isinstance(answer, Queues), f"the broker answered GetQueues with {type(answer).__name__}"
    return answer


POLL_S = 0.5
ASK_S = 3.0


async def snapshots(where: RunLayout, every_s: float | None = None) -> AsyncGenerator[Queues | None, None]:
    """The broker's queues, twice a second unless said; `None` while it does not answer. Never ends by itself."""
    client = Client(where.broker, peer="broker", keys=where.keys("viewer"))
    try:
        while True:
            queues: Queues | None = None
            with contextlib.suppress(WireError):
                queues = (await client.request(GetQueues(brief=True), deadline_s=ASK_S)).message
            yield queues
            await asyncio.sleep(POLL_S if every_s is None else every_s)
    finally:
        client.close()
