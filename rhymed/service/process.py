"""Runs a service as a process: log file, signals, watchdog, exit status, and death with the supervisor."""

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
from rhymed.output import show
from rhymed.service.service import EX_HOPELESS, Service, log
from rhymed.service.stdio import ignore_output_errors, survive_hangup

PR_SET_PDEATHSIG = 1


def serve(build: Callable[[], Service], *, log_file: Path | None = None, level: str = "info") -> NoReturn:
    """Run one service as this process, and end the process with it. `build` is called on the event loop."""
    import uvloop

    from rhymed.service import logfile

    logfile.configure(log_file, level, console=logfile.has_console())
    die_with_parent()
    faulthandler.enable()

    async def body() -> NoReturn:
        status = 0
        try:
            await _run(build)
        except Exception as error:
            log.error("ended: %s: %s", type(error).__name__, error, exc_info=error)
            show(f"rhymed: {type(error).__name__}: {error}", file=sys.stderr)
            status = EX_HOPELESS if isinstance(error, HOPELESS) else 1
        _exit(status)

    with ignore_output_errors():
        uvloop.run(body())
    raise AssertionError("the process has ended")


async def _run(build: Callable[[], Service]) -> None:
    import setproctitle

    from rhymed.service import watchdog

    service = build()
    setproctitle.setproctitle(f"rhymed {service.name}")
    watchdog.start(lambda: service.lag.turns, service.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)
    survive_hangup()
    await service.run()


def _exit(status: int) -> NoReturn:
    """At once: closing the event loop would wait for threads in the middle of a long computation."""
    from rhymed.wire.sockets import drain

    drain()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with_parent() -> None:
    """SIGTERM for this process when its supervisor dies (Linux; elsewhere the silence of its peers ends it). Ends it
    here if the supervisor has died already: starting Python takes a second."""
    if sys.platform == "linux" and os.environ.get("RHYMED_SUPERVISED"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        supervisor = os.environ.get("RHYMED_SUPERVISOR", "")
        if supervisor and os.getppid() != int(supervisor):
            sys.exit("rhymed: the `rhymed run` that started this process is gone")
