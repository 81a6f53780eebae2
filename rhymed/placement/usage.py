"""What a worker uses of its machine: its newest `Usage`, read in a thread at a slow pace.

Invariant: the event loop never waits for a reading. One that does not return is never repeated, and after `STALE_S`
its predecessor is no longer reported.

`UsageMeter` has the newest reading, `Devices` reads GPUs, and `ProcessTree` reads processors and memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from rhymed.core.config import Config
from rhymed.core.messages import GpuUsage, Role, Usage
from rhymed.placement.gpus import VISIBLE, chosen, generates_on_gpus, torch_is_for_cpus, trains_on_gpus

log = logging.getLogger(__name__)

# GPUs as NVIDIA's management library sees them: utilization, memory, temperature.
#
# Needs the package nvidia-ml-py (module `pynvml`) and a driver; without either there are no devices. A call that
# fails leaves its number out: a run does not end because its GPUs cannot be watched. Blocking: the driver answers in
# milliseconds, or, when a device hangs, not at all.

TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU


def load() -> Any:
    """The module `pynvml`; None: it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


class Devices:
    """The devices that a process with this `CUDA_VISIBLE_DEVICES` may use. `library`: see `load`."""

    def __init__(self, library: Any, visible: str | None) -> None:
        self._library, self._visible = library, visible
        self._devices: list[tuple[int, Any, str]] = []  # (index, handle, kind), once NVML has started

    def read(self) -> list[GpuUsage]:
        """Raises nothing. While there are no devices, the library is started again by each call."""
        if self._library is not None and not self._devices:
            self._devices = self._call(self._open) or []
        return [self._usage(*device) for device in self._devices]

    def _open(self) -> list[tuple[int, Any, str]]:
        nvml = self._library
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = chosen(self._visible, [nvml.nvmlDeviceGetUUID(handle) for handle in handles])
        return [(index, handles[index], nvml.nvmlDeviceGetName(handles[index])) for index in found]

    def _usage(self, index: int, handle: Any, kind: str) -> GpuUsage:
        nvml = self._library
        rates = self._call(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._call(nvml.nvmlDeviceGetMemoryInfo, handle)
        celsius = self._call(nvml.nvmlDeviceGetTemperature, handle, TEMPERATURE_GPU)
        return GpuUsage(
            index=index,
            kind=kind,
            utilization=None if rates is None else rates.gpu / 100,
            memory=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            celsius=None if celsius is None else float(celsius),
        )

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """None: it failed, or the device has no such number."""
        try:
            return function(*arguments)
        except Exception as error:  # of the driver, of any kind
            log.debug("NVML: %s", error)
            return None


# The newest reading of a worker, made in a thread.

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
        return Usage(cpu=round(cpu, 3), memory=memory, processes=processes, gpus=gpus)


def meter(config: Config, role: Role) -> UsageMeter:
    """With GPUs if a worker of this role computes on them."""
    uses = {"rollout": generates_on_gpus, "trainer": trains_on_gpus}.get(role)
    if uses is None or not uses(config) or torch_is_for_cpus():
        return UsageMeter()
    return UsageMeter(Devices(load(), os.environ.get(VISIBLE)))


# Processors and memory in use by a process and all its descendants, by psutil.
#
# CPU time includes that of descendants that have ended and were waited for, so programs of a second count. Blocking:
# it reads the list of all processes of the machine, some milliseconds.


class Reading(NamedTuple):
    cpu: float  # seconds of CPU per second, since the last reading; the first one: since the process started
    memory: int  # bytes
    processes: int


class ProcessTree:
    """`root`: a process id; None: this process."""

    def __init__(self, root: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = psutil.Process(root), clock
        self._seconds, self._at = 0.0, clock() - (time.time() - self._root.create_time())

    def read(self) -> Reading:
        """Raises `psutil.Error` if the root is gone."""
        seconds, memory, processes = self._sums()
        before, begun = self._seconds, self._at
        self._seconds, self._at = seconds, self._clock()
        passed = self._at - begun
        return Reading(max(0.0, seconds - before) / passed if passed > 0 else 0.0, memory, processes)

    def _sums(self) -> tuple[float, int, int]:
        seconds, memory, processes = _of(self._root)
        for process in self._root.children(recursive=True):
            try:
                own, resident, _ = _of(process)
            except psutil.Error:
                continue  # it has just ended
            seconds, memory, processes = seconds + own, memory + resident, processes + 1
        return seconds, memory, processes


def _of(process: Any) -> tuple[float, int, int]:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return times.user + times.system + ended, max(0, memory.rss - getattr(memory, "shared", 0)), 1
