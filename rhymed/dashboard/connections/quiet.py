"""The log of requests that aiohttp cannot read: one line each without a traceback, and few of them in a flood."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

from rhymed.text import short
from rhymed.wire.limits import LogThrottle

NAME = "rhymed.dashboard.http"
QUOTED = 80  # characters of what a stranger sent


class Quiet(logging.Filter):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._throttle, self._clock = LogThrottle(), clock

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):
            return False  # the client left
        suffix = self._throttle.permit(self._clock())
        if suffix is None:
            return False
        text = record.getMessage()
        if isinstance(error, HttpProcessingError):
            text = f"a malformed request: {short(error.message, QUOTED)}"
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = record.exc_text = None
        record.msg, record.args = text + suffix, ()
        return True


def quiet_log() -> logging.Logger:
    """For aiohttp's handlers."""
    log = logging.getLogger(NAME)
    if not any(isinstance(each, Quiet) for each in log.filters):
        log.addFilter(Quiet())
    return log
