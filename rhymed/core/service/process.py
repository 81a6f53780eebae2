"""Runs a service as a process: log file, signals, watchdog, exit status, and death with the supervisor."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rhymed.core import unloadable
from rhymed.core.errors import HOPELESS, Unstartable
from rhymed.core.output import show
from rhymed.core.service.service import EX_HOPELESS, EX_UNSTARTED, Service, log
from rhymed.core.service.stdio import ignore_output_errors, survive_hangup

PR_SET_PDEATHSIG = 1


def serve(
    build: Callable[[], Service],
    *,
    log_file: Path | None = None,
    level: str = "info",
    check: Callable[[], None] | None = None,
) -> NoReturn:
    """Run one service as this process, and end the process with it. `build` is called on the event loop; `check` in a
    thread, before the service opens and when it has opened: its error ends the service, too."""
    import uvloop

    from rhymed.core.service import logfile

    logfile.configure(log_file, level, console=logfile.has_console())
    if hidden := unloadable.note():
        log.info("%s", hidden)
    die_with_parent()
    faulthandler.enable()

    async def body() -> NoReturn:
        status = 0
        try:
            await _run(build, check)
        except Exception as error:
            log.error("ended: %s: %s", type(error).__name__, error, exc_info=error)
            show(f"rhymed: {type(error).__name__}: {error}", file=sys.stderr)
            unstarted = isinstance(error, Unstartable)
            status = EX_HOPELESS if isinstance(error, HOPELESS) else EX_UNSTARTED if unstarted else 1
        _exit(status)

    with ignore_output_errors():
        uvloop.run(body())
    raise AssertionError("the process has ended")


async def _run(build: Callable[[], Service], check: Callable[[], None] | None) -> None:
    import setproctitle

    service = build()
    setproctitle.setproctitle(f"rhymed {service.name}")
    start(lambda: service.lag.turns, service.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)
    survive_hangup()
    if check is not None:
        await asyncio.to_thread(check)
        service.spawn(_when_open(service, check))
    await service.run()


async def _when_open(service: Service, check: Callable[[], None]) -> None:
    await service.opened.wait()
    await asyncio.to_thread(check)


def _exit(status: int) -> NoReturn:
    """At once: closing the event loop would wait for threads in the middle of a long computation."""
    from rhymed.core.wire.sockets import drain

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


# A thread that ends the process when its event loop hangs, after writing down where.
#
# A process that hangs is worse than a dead one: it keeps its work, its locks and its name. Silence is counted in
# checks by the thread, not on a clock: a process that was stopped, or slept with its machine, does not count the
# time.


CHECK_S = 5.0
REPORT_AFTER = 6  # checks without a turn of the loop
END_AFTER = 24
EXIT_STUCK = 75  # EX_TEMPFAIL: a restart may help


def start(turns: Callable[[], int], name: str, *, check_s: float = CHECK_S) -> threading.Thread:
    """Watch a loop by a number that grows with its turns. The thread ends with the process."""
    thread = threading.Thread(target=_watch, args=(turns, name, check_s), name="watchdog", daemon=True)
    thread.start()
    return thread


def _watch(turns: Callable[[], int], name: str, check_s: float) -> None:
    seen, silent = -1, 0
    while True:
        time.sleep(check_s)
        now = turns()
        silent = silent + 1 if now == seen else 0
        seen = now
        if silent == REPORT_AFTER:
            log.error("%s: the event loop has hung for %.0f s; its stack is on stderr", name, silent * check_s)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        if silent >= END_AFTER:
            show(f"rhymed: {name} hung for {silent * check_s:.0f} s", file=sys.stderr, flush=True)
            os._exit(EXIT_STUCK)
