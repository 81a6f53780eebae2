"""A worker's newest `Usage`, read in a thread at a slow pace.

Invariant: the event loop never waits for a reading. One that does not return is never repeated, and after `STALE_S`
its predecessor is no longer reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping

from rhymed.config import Config
from rhymed.gpus.inventory import VISIBLE, torch_is_for_cpus
from rhymed.gpus.placement import generates_on_gpus, trains_on_gpus
from rhymed.messages import Role, Usage
from rhymed.usage.nvml import Devices, load
from rhymed.usage.processes import ProcessTree

log = logging.getLogger(__name__)

EVERY_S = 2.0
STALE_S = 30.0


class UsageMeter:
    """`newest` is called on an event loop."""

    def __init__(self, devices: Devices | None = None, every_s: float = EVERY_S) -> None:
        """`devices`: None if the worker uses no GPU."""
        self._devices, self._every_s = devices, every_s
        self._tree = ProcessTree()
        self._reading: asyncio.Future[Usage] | None = None
        self._begun = time.monotonic()
        self._newest: tuple[float, Usage] | None = None  # and when it was read

    def newest(self) -> Usage | None:
        """None: there is no reading yet, or readings have stopped. Begins the next one if it is due."""
        now = time.monotonic()
        if self._reading is None and now >= self._begun + self._every_s:
            self._begun = now
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
            self._reading.add_done_callback(self._done)
        if self._newest is None or now > self._newest[0] + STALE_S:
            return None
        return self._newest[1]

    def _done(self, reading: asyncio.Future[Usage]) -> None:
        self._reading = None
        with contextlib.suppress(asyncio.CancelledError):
            try:
                self._newest = time.monotonic(), reading.result()
            except Exception as error:  # of psutil: a worker works without these numbers, too
                log.debug("what this process uses could not be read: %s", error)

    def _read(self) -> Usage:
        cpu, memory, processes = self._tree.read()
        gpus = self._devices.read() if self._devices else []
        failures = self._devices.failures if self._devices else 0
        return Usage(cpu=round(cpu, 3), memory=memory, processes=processes, gpus=gpus, failures=failures)


def meter(config: Config, role: Role, environment: Mapping[str, str] = os.environ) -> UsageMeter:
    """With GPUs if a worker of this role computes on them."""
    uses = {"rollout": generates_on_gpus, "trainer": trains_on_gpus}.get(role)
    if uses is None or not uses(config) or torch_is_for_cpus():
        return UsageMeter()
    return UsageMeter(Devices(load(), environment.get(VISIBLE)))
