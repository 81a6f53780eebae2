"""A stand-in for the module `pynvml`: the few functions that rhymed calls, over devices that a test describes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Device:
    uuid: str
    busy: int = 91  # percent
    used: int = 61 * GIB
    total: int = 140 * GIB
    celsius: int = 64
    failing: dict[str, int] = field(default_factory=dict)  # function -> code


class FakeNvml:
    """`failing`: functions of the library -> code of the error that they raise."""

    def __init__(self, *devices: Device, **failing: int) -> None:
        self.devices, self.failing, self.calls = devices, failing, 0

    def _call(self, name: str, device: Device | None = None) -> None:
        self.calls += 1
        for failing in (self.failing, device.failing if device else {}):
            if name in failing:
                raise FakeError(failing[name])

    def nvmlInit(self) -> None:  # noqa: N802
        self._call("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._call("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        self._call("nvmlDeviceGetHandleByIndex")
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device: Device) -> str:  # noqa: N802
        self._call("nvmlDeviceGetUUID", device)
        return device.uuid

    def nvmlDeviceGetName(self, device: Device) -> str:  # noqa: N802
        self._call("nvmlDeviceGetName", device)
        return "NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:  # noqa: N802
        self._call("nvmlDeviceGetUtilizationRates", device)
        return SimpleNamespace(gpu=device.busy, memory=0)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:  # noqa: N802
        self._call("nvmlDeviceGetMemoryInfo", device)
        return SimpleNamespace(used=device.used, total=device.total)

    def nvmlDeviceGetTemperature(self, device: Device, sensor: int) -> int:  # noqa: N802
        self._call("nvmlDeviceGetTemperature", device)
        assert sensor == 0
        return device.celsius
