"""Bounds what a scorer prints, on its way to our stderr."""

from __future__ import annotations

import contextlib
import os
import select
import time

BURST_BYTES = 1 << 16
REFILL_BYTES_S = 1 << 10
LAST_OUTPUT_S = 0.5


class OutputLimit:
    """Forwards a burst at once, then a little per second; the rest is counted and left out."""

    def __init__(self) -> None:
        self._budget = float(BURST_BYTES)
        self._since = time.monotonic()
        self._left_out = 0

    def forward(self, source: int) -> bool:
        """False at the end of the output."""
        text = os.read(source, 1 << 20)
        now = time.monotonic()
        self._budget = min(BURST_BYTES, self._budget + (now - self._since) * REFILL_BYTES_S)
        self._since = now
        waits = self._left_out and self._budget < REFILL_BYTES_S  # else each byte of it had a report before it
        kept = b"" if waits else text[: int(self._budget)]
        if kept and self._left_out:
            self._report_left_out()
        self._budget -= len(kept)
        self._left_out += len(text) - len(kept)
        _write(kept)
        return bool(text)

    def finish(self, source: int) -> None:
        """Forward what is still in the pipe."""
        deadline = time.monotonic() + LAST_OUTPUT_S
        while time.monotonic() < deadline and select.select([source], [], [], 0)[0] and self.forward(source):
            pass
        if self._left_out:
            self._report_left_out()

    def _report_left_out(self) -> None:
        _write(f"\n[... a scorer printed {self._left_out:,} bytes more, which are left out]\n".encode())
        self._left_out = 0


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]
