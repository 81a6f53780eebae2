"""Builds the library that fails and records what a process writes, and gives the environment that loads it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from rhymed.core.errors import ConfigError

SOURCE = Path(__file__).with_name("disk.c")
KINDS = (
    "a write fails: EIO",
    "a write fails: ENOSPC",
    "a write is short",
    "a flush fails: EIO",
    "an allocation fails: ENOSPC",
    "a name cannot be made: EIO",
    "a name cannot be made: ENOSPC",
)
CONTROL = struct.Struct(f"<II{len(KINDS)}I128s")  # `struct faults` of disk.c


def is_possible() -> bool:
    return shutil.which("gcc") is not None


def build(folder: Path) -> Path:
    """Raises `ConfigError` without a compiler."""
    library = folder / "disk.so"
    if not is_possible():
        raise ConfigError("a disk that fails is a C library which is compiled here: install gcc")
    command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ConfigError(f"{SOURCE.name} cannot be compiled (Linux and glibc are needed): {made.stderr[-500:]}")
    return library


def environment(library: Path, *under: Path, log: Path | None = None, faults: Path | None = None) -> dict[str, str]:
    """Of a process whose files below `under` are recorded in `log` and fail as the file `faults` controls."""
    wanted = {"RHYMED_DISK_LOG": log, "RHYMED_DISK_FAULTS": faults}
    return {
        "LD_PRELOAD": str(library),
        "RHYMED_DISK_UNDER": ":".join(str(folder.resolve()) for folder in under),
        **{name: str(file) for name, file in wanted.items() if file},
    }


class Faults:
    """The file that controls the faults of all processes that have mapped it, and counts them."""

    def __init__(self, file: Path, seed: int) -> None:
        self.file, self.is_storm = file, False
        file.write_bytes(CONTROL.pack(0, seed, *(0 for _ in KINDS), b""))

    def set(self, per_million: int, only: str = "") -> None:
        """From now on. `only`: a part of the path."""
        with self.file.open("r+b") as opened:
            opened.seek(CONTROL.size - 128)
            opened.write(only.encode().ljust(128, b"\0"))
            opened.seek(0)
            opened.write(struct.pack("<I", per_million))
        self.is_storm = per_million > 0

    def counts(self) -> dict[str, int]:
        return dict(zip(KINDS, CONTROL.unpack(self.file.read_bytes())[2:-1], strict=True))
