"""`python -m rhymed.dashboard FOLDER ADDRESS`: the dashboard as a process of its own, beside the broker that started it.

What it says on its standard output are lines: the address that it took, or `!` and why it cannot be, and `?` for a
snapshot, which it gets on its standard input (`live.Piped`). It ends when the broker does: told by SIGTERM,
when the run is over, which its pages hear; without a word when the broker dies, which may come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import IO

LOOK_S = 0.25  # whether the broker is still there
POLITE = 5  # added to the niceness: the run goes first


async def work(folder: Path, address: str) -> None:
    from rhymed.dashboard import listen
    from rhymed.dashboard.server import serving
    from rhymed.dashboard.snapshots import Live, Piped
    from rhymed.wire.addresses import parse_http

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own(sys.stdin, "rb"))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, own(sys.stdout, "wb"))
    broker, stop = Piped(reader, writer), asyncio.Event()
    live = Live(broker)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(folder, parse_http(address), live, again=True) as taken:
        await asyncio.to_thread(listen.write, folder, taken)
        tell(taken.url)
        while not (stop.is_set() or broker.gone.is_set() or reader.at_eof()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)
        if stop.is_set():
            live.end()


def own(stream: IO[str], mode: str) -> IO[bytes]:
    """The event loop closes what it was given."""
    return os.fdopen(os.dup(stream.fileno()), mode, buffering=0)


def tell(line: str) -> None:
    """To the broker; the pipe has room for it."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.replace("\n", " ").encode() + b"\n")


def main() -> None:
    import uvloop

    from rhymed.errors import RhymedError
    from rhymed.service.logfile import configure

    folder, address = Path(sys.argv[1]), sys.argv[2]
    configure(folder / "logs" / "dashboard.log", "info")
    os.nice(POLITE)
    try:
        uvloop.run(work(folder, address))
    except RhymedError as error:
        tell(f"!{error}")
        sys.exit(1)
    except Exception:
        logging.getLogger(__name__).exception("the dashboard ended")
        sys.exit(1)


if __name__ == "__main__":
    main()
