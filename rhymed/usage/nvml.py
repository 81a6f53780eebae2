"""GPUs as NVIDIA's management library sees them: utilization, memory, temperature.

Needs the package nvidia-ml-py (module `pynvml`) and a driver; without either there are no devices. A call that fails
leaves its number out and is counted; what a device does not have is not a failure. Blocking: the driver answers in
milliseconds, or, when a device hangs, not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from rhymed.messages import GpuUsage

log = logging.getLogger(__name__)

NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 3, 9, 12
"""NVML's codes, in `value` of its errors."""
ABSENT = (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)
TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU


def load() -> Any:
    """The module `pynvml`; None: it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def chosen(visible: str | None, uuids: Sequence[str]) -> list[int]:
    """Which of these devices `CUDA_VISIBLE_DEVICES` leaves; None: all. As for CUDA, an entry is an index or the start
    of one device's uuid, and an entry that names no device ends the list. Slices of a device (MIG) count as none."""
    if visible is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            named = [int(entry)] if int(entry) < len(uuids) else []
        else:
            named = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


class Devices:
    """The devices that a process with this `CUDA_VISIBLE_DEVICES` may use. `library`: see `load`."""

    def __init__(self, library: Any, visible: str | None) -> None:
        self.failures = 0
        self._library, self._visible = library, visible
        self._devices: list[tuple[int, Any, str]] | None = None  # (index, handle, kind), once NVML has started

    def read(self) -> list[GpuUsage]:
        """Raises nothing. After a failure of the whole library, it is started again by the next call."""
        if self._library is None:
            return []
        if self._devices is None:
            self._devices = self._open()
        return [self._usage(*device) for device in self._devices or ()]

    def _open(self) -> list[tuple[int, Any, str]] | None:
        """None: try again later."""
        nvml = self._library
        try:
            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except Exception as error:  # of the driver: a run does not end because its GPUs cannot be watched
            if getattr(error, "value", None) in ABSENT:
                return []
            self._failed(error)
            return None
        kinds = [self._call(nvml.nvmlDeviceGetName, handle) for handle in handles]
        return [(index, handles[index], _text(kinds[index] or "")) for index in chosen(self._visible, uuids)]

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
        except Exception as error:  # as above
            if getattr(error, "value", None) != NOT_SUPPORTED:
                self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            log.warning("NVML: %s: numbers of GPUs are incomplete; further failures are counted", error)


def _text(value: str | bytes) -> str:
    """Older releases of `pynvml` return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
