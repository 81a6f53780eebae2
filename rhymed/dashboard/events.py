"""What happens, told to pages as server-sent events. The newest replaces what was not yet sent.

Invariant: a client costs one set of names and one task, however long it does not read; whoever takes nothing for
`SILENT_S` is let go, and one client too many is refused. What an event holds is asked for when it is sent, so that a
slow client gets the state of then; what was told before the end is sent before it. Knows neither runs nor what the
events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

MOST_CLIENTS = 32
SILENT_S = 30.0  # without taking what was written
BEAT_S = 15.0  # without an event: a comment, so that dead connections are noticed

Make = Callable[[str], Awaitable[bytes | None]]
"""From an event's name to its whole text for one client, `frame`d; None: nothing new for it."""


class Client:
    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}  # names, in the order in which they came
        self._wake = asyncio.Event()
        self._over = False

    def tell(self, name: str) -> None:
        self.waiting[name] = None
        self._wake.set()

    def close(self) -> None:
        """Nothing more will be told."""
        self._over = True
        self._wake.set()

    async def names(self) -> AsyncIterator[str]:
        """Events as they come, each once, until it is closed; empty: nothing for a while."""
        while not self._over:
            try:
                await asyncio.wait_for(self._wake.wait(), BEAT_S)
            except TimeoutError:
                yield ""
            self._wake.clear()
            while self.waiting:
                name = next(iter(self.waiting))
                del self.waiting[name]
                yield name


class Hub:
    """All clients."""

    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self._clients: set[Client] = set()
        self._most = most

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def is_full(self) -> bool:
        return len(self._clients) >= self._most

    def tell(self, *names: str) -> None:
        """Costs a set's insertion a client."""
        for client in self._clients:
            for name in names:
                client.tell(name)

    def close(self) -> None:
        """Each client gets what it was told, and is let go."""
        for client in self._clients:
            client.close()

    async def serve(self, make: Make, write: Callable[[bytes], Awaitable[None]], first: tuple[str, ...] = ()) -> None:
        """Until the client is gone, takes nothing or is let go; `first`: events that it gets at once."""
        client = Client()
        for name in first:
            client.tell(name)
        self._clients.add(client)
        try:
            async for name in client.names():
                text = await make(name) if name else b":\n\n"
                if text:
                    async with asyncio.timeout(SILENT_S):
                        await write(text)
        except (TimeoutError, ConnectionError):
            return
        finally:
            self._clients.discard(client)


def frame(name: str, data: bytes, id: str = "") -> bytes:
    """One event; `data` is one line, as JSON is."""
    head = f"event: {name}\n" + (f"id: {id}\n" if id else "")
    return head.encode() + b"data: " + data + b"\n\n"
