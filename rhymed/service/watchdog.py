"""A thread that ends the process when its event loop hangs, after writing down where.

A process that hangs is worse than a dead one: it keeps its work, its locks and its name. Silence is counted in checks
by the thread, not on a clock: a process that was stopped, or slept with its machine, does not count the time.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from rhymed.output import show

log = logging.getLogger(__name__)

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
