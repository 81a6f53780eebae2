"""Small disks of our own, which tests fill."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """Of `size`, as tmpfs understands it. Skips the test where mounting needs privileges."""
    mount.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)  # a test may still have a file open


def fill(disk: Path, leave: int = 0) -> Path:
    """Everything but `leave` bytes."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        while (free := shutil.disk_usage(disk).free - leave) > 0:
            filler.write(bytes(min(free, 1 << 20)))
    return disk / "filler"
