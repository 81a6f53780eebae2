"""`python -m rhymed.show.dashboard FOLDER ADDRESS`: the dashboard's process, which the broker starts.

It writes lines to standard output: its address, `!` and the reason why there is no dashboard, or `?` to request a
snapshot, which arrives on standard input (`snapshots.SnapshotPipe`). It ends with the broker: on SIGTERM, when the
run is over, its pages get the time to hear that; when the broker dies, they do not, because it may restart.
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

POLL_S = 0.25  # whether the broker is alive
LAST_S = 1.5  # pages ask once per second
NICENESS = 5  # the run goes first


async def work(folder: Path, address: str) -> None:
    from rhymed.core.wire.addresses import parse_http
    from rhymed.show.dashboard import listen
    from rhymed.show.dashboard.server import serving
    from rhymed.show.dashboard.snapshots import LiveRun, SnapshotPipe

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _duplicate(sys.stdin, "rb"))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, _duplicate(sys.stdout, "wb"))
    broker, stop = SnapshotPipe(reader, writer), asyncio.Event()
    live = LiveRun(broker)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(folder, parse_http(address), live, again=True) as bound:
        await asyncio.to_thread(listen.write, folder, bound)
        report(bound.url)
        while not (stop.is_set() or broker.gone.is_set() or reader.at_eof()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
            with contextlib.suppress(OSError):  # the folder is gone, or the disk is full
                await asyncio.to_thread(listen.keep, folder, bound)
        if stop.is_set() and live.end():
            await asyncio.sleep(LAST_S)


def _duplicate(stream: IO[str], mode: str) -> IO[bytes]:
    """For the event loop, which closes it."""
    return os.fdopen(os.dup(stream.fileno()), mode, buffering=0)


def report(line: str) -> None:
    """To the broker; the pipe has room for it."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.replace("\n", " ").encode() + b"\n")


def main() -> None:
    import uvloop

    from rhymed.core.errors import RhymedError
    from rhymed.core.service.logfile import configure

    folder, address = Path(sys.argv[1]), sys.argv[2]
    configure(folder / "logs" / "dashboard.log", "info")
    os.nice(NICENESS)
    try:
        uvloop.run(work(folder, address))
    except RhymedError as error:
        report(f"!{error}")
        sys.exit(1)
    except Exception:
        logging.getLogger(__name__).exception("the dashboard ended")
        sys.exit(1)


if __name__ == "__main__":
    main()
