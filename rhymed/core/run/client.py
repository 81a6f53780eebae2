"""Asks a living run's broker for its queues.

`ask` is one question. `poll` asks again and again: it yields None for silence and never ends, so the caller decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from rhymed.core.errors import ConfigError, DeadlineExceeded, WireError
from rhymed.core.messages import GetQueues, Queues
from rhymed.core.run.layout import RunLayout
from rhymed.core.wire.addresses import is_removed
from rhymed.core.wire.sockets import Client

DEADLINE_S = 5.0
POLL_S = 0.5
POLL_DEADLINE_S = 3.0


async def ask(client: Client, *, brief: bool = True, deadline_s: float = POLL_DEADLINE_S) -> Queues:
    """One snapshot; `brief` leaves out the samples that workers hold. Raises `WireError`."""
    answer = (await client.request(GetQueues(brief=brief), deadline_s=deadline_s)).message
    assert isinstance(answer, Queues), f"the broker answered GetQueues with {type(answer).__name__}"
    return answer


async def ask_or_explain(client: Client) -> Queues:
    """One full snapshot. If there is none, the error says how to name another run."""
    if is_removed(client.address):
        raise ConfigError(
            f"no run is alive at {client.address}: it ended or has not started; name the folder of another"
        )
    try:
        return await ask(client, brief=False, deadline_s=DEADLINE_S)
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"no broker answered at {client.address} within {DEADLINE_S:g} s: is the run alive? `rhymed run` starts"
            " one; name the folder of another, or --broker ADDRESS"
        ) from None


async def poll(layout: RunLayout, every_s: float | None = None) -> AsyncGenerator[Queues | None, None]:
    """Brief snapshots, by default twice per second; None while the broker does not answer. Never ends by itself."""
    client = Client(layout.broker, peer="broker", keys=layout.keys("viewer"))
    try:
        while True:
            snapshot: Queues | None = None
            with contextlib.suppress(WireError):
                snapshot = await ask(client)
            yield snapshot
            await asyncio.sleep(POLL_S if every_s is None else every_s)
    finally:
        client.close()
