"""A service as a process of its own."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rhymed.errors import HOPELESS
from rhymed.service.service import EX_HOPELESS, Service, log
from rhymed.service.stdio import lasting, outlive

PR_SET_PDEATHSIG = 1


def serve(build: Callable[[], Service], *, log_file: Path | None = None, level: str = "info") -> NoReturn:
    """Run one service as this process, and end the process with it. `build` is called on the event loop."""
    import uvloop

    from rhymed.service import logfile

    logfile.configure(log_file, level, console=logfile.by_hand())
    die_with_parent()
    faulthandler.enable()

    async def body() -> NoReturn:
        status = 0
        try:
            await _work(build)
        except Exception as error:
            log.error("ended: %s: %s", type(error).__name__, error, exc_info=error)
            print(f"rhymed: {type(error).__name__}: {error}", file=sys.stderr)
            status = EX_HOPELESS if isinstance(error, HOPELESS) else 1
        _leave(status)

    with lasting():
        uvloop.run(body())
    raise AssertionError("the process has ended")


async def _work(build: Callable[[], Service]) -> None:
    import setproctitle

    from rhymed.service import watchdog

    service = build()
    setproctitle.setproctitle(f"rhymed {service.name}")
    watchdog.guard(lambda: service.lag.turns, service.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)
    outlive()
    await service.run()


def _leave(status: int) -> NoReturn:
    """Here: the loop's end would wait for every thread in the middle of a long computation."""
    from rhymed.wire.sockets import drain

    drain()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with_parent() -> None:
    """A supervisor that is killed outright takes its children along (Linux; elsewhere they notice by silence).

    Also one that was killed before we could ask for that: Python takes a second to come this far.
    """
    if sys.platform == "linux" and os.environ.get("RHYMED_SUPERVISED"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        supervisor = os.environ.get("RHYMED_SUPERVISOR", "")
        if supervisor and os.getppid() != int(supervisor):
            sys.exit("rhymed: the `rhymed run` that started this process is gone")
