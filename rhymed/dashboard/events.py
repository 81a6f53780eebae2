"""Server-sent events. A newer event replaces one of the same name that was not yet sent.

Invariant: a client costs one set of names and one task, however long it does not read, and one client too many is
refused. How long a client may take nothing is a limit of its connection, whose loss ends `serve`. An event's data is
made when it is sent, so a slow client gets the newest state; what was notified before the end is sent before it. Does
not know what the events mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from rhymed.errors import Overloaded

MOST_CLIENTS = 32
BEAT_S = 15.0  # without an event, a comment is sent, so that dead connections are noticed

Make = Callable[[str], Awaitable[bytes | None]]
"""An event's name -> its frame for one client; None: nothing new."""


class Client:
    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}  # names, in order of notification
        self._wake = asyncio.Event()
        self._over = False

    def notify(self, name: str) -> None:
        self.waiting[name] = None
        self._wake.set()

    def put_first(self, names: tuple[str, ...]) -> None:
        """Before what it was notified of until now."""
        self.waiting = dict.fromkeys((*names, *self.waiting))
        self._wake.set()

    def close(self) -> None:
        self._over = True
        self._wake.set()

    async def names(self) -> AsyncIterator[str]:
        """Each name once, until the client is closed; empty: nothing for `BEAT_S`."""
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
    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self._clients: set[Client] = set()
        self._most = most

    def __len__(self) -> int:
        return len(self._clients)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """One more, until it is left. Raises `Overloaded`."""
        if len(self._clients) >= self._most:
            raise Overloaded("too many pages are open already: close one")
        client = Client()
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.discard(client)

    def notify(self, *names: str) -> None:
        for client in self._clients:
            for name in names:
                client.notify(name)

    def close(self) -> None:
        """Every client gets its waiting events, and is disconnected."""
        for client in self._clients:
            client.close()


async def serve(
    client: Client, make: Make, write: Callable[[bytes], Awaitable[None]], first: tuple[str, ...] = ()
) -> None:
    """Until the client leaves or is disconnected. `first`: events that it gets at once."""
    client.put_first(first)
    with contextlib.suppress(ConnectionError):
        async for name in client.names():
            text = await make(name) if name else b":\n\n"
            if text:
                await write(text)


def frame(name: str, data: bytes, id: str = "") -> bytes:
    """One event; `data` is one line."""
    head = f"event: {name}\n" + (f"id: {id}\n" if id else "")
    return head.encode() + b"data: " + data + b"\n\n"
