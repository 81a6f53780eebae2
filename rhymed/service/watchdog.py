"""A thread that notices when the event loop does not turn any more: it writes down where, then ends the process.

A process that hangs is worse than one that is dead: it keeps its work, its locks and its name. Silence is counted in
the thread's own looks, not on a clock, so a process that was stopped, or slept with its machine, is not blamed.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_S = 5.0
TELL_AFTER = 6  # looks without a turn of the loop
END_AFTER = 24
EX_STUCK = 75  # exit status: try again


def guard(turns: Callable[[], int], name: str, *, look_s: float = LOOK_S) -> threading.Thread:
    """Watch a loop by a number that grows with its turns. The thread ends with the process."""
    thread = threading.Thread(target=_watch, args=(turns, name, look_s), name="watchdog", daemon=True)
    thread.start()
    return thread


def _watch(turns: Callable[[], int], name: str, look_s: float) -> None:
    seen, silent = -1, 0
    while True:
        time.sleep(look_s)
        now = turns()
        silent = silent + 1 if now == seen else 0
        seen = now
        if silent == TELL_AFTER:
            log.error("%s: the event loop has not turned for %.0f s; where, is on stderr", name, silent * look_s)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        if silent >= END_AFTER:
            print(f"rhymed: {name} hung for {silent * look_s:.0f} s", file=sys.stderr, flush=True)
            os._exit(EX_STUCK)
