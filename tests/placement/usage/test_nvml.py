"""Devices by NVML: which ones a process may use, and what is left out when calls fail. The library is a stand-in."""

from __future__ import annotations

import pytest

from rhymed.core.messages import GpuUsage
from rhymed.placement.gpus import chosen
from rhymed.placement.usage import Devices, load
from tests.placement.usage.fake_nvml import GIB, Device, FakeNvml

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),  # an entry that names no device ends the list
        ("1,1", [1]),
        ("GPU-cc33,GPU-aa", [2, 0]),
        ("GPU-a", []),  # of two devices
        ("GPU-ab22,0", [1, 0]),
        ("MIG-3f00,0", []),
        ("0,,1", [0]),
    ],
)
def test_devices_are_chosen_as_cuda_does(visible: str | None, found: list[int]) -> None:
    assert chosen(visible, UUIDS) == found


def test_numbers_of_the_visible_devices() -> None:
    library = FakeNvml(Device("GPU-aa11"), Device("GPU-ab22", busy=3, used=GIB, celsius=40))
    (usage,) = Devices(library, "GPU-ab").read()
    assert usage == GpuUsage(
        index=1, kind="NVIDIA H200", utilization=0.03, memory=GIB, memory_total=140 * GIB, celsius=40.0
    )
    assert [usage.index for usage in Devices(library, None).read()] == [0, 1]


@pytest.mark.parametrize("code", [9, 12])
def test_without_a_library_or_a_driver_there_is_nothing(code: int) -> None:
    for library in (None, FakeNvml(nvmlInit=code)):
        devices = Devices(library, None)
        assert devices.read() == devices.read() == []


def test_a_call_that_fails_leaves_its_number_out() -> None:
    device = Device("GPU-aa11", failing={"nvmlDeviceGetTemperature": 15, "nvmlDeviceGetMemoryInfo": 999})
    (usage,) = Devices(FakeNvml(device), None).read()
    assert (usage.utilization, usage.memory, usage.memory_total, usage.celsius) == (0.91, None, None, None)


def test_a_library_that_fails_to_start_is_started_again() -> None:
    library = FakeNvml(Device("GPU-aa11"), nvmlDeviceGetCount=999)
    devices = Devices(library, None)
    assert devices.read() == []
    library.failing.clear()
    assert len(devices.read()) == 1


def test_the_real_package_has_what_is_called() -> None:
    library = load()
    if library is None:
        pytest.skip("nvidia-ml-py is not installed")
    for name in dir(FakeNvml):
        assert not name.startswith("nvml") or callable(getattr(library, name))
    assert library.NVML_TEMPERATURE_GPU == 0
    Devices(library, None).read()  # with or without a driver
