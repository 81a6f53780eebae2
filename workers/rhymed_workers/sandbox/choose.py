"""Chooses the sandbox in which a model's programs run on this machine, and starts one.

Strongest first: `bubblewrap` where it is installed and works, `rlimits` everywhere: time, memory and sizes are
limited, but network and files stay open. Each is tested once, by running Python in it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rhymed.core import private
from rhymed_workers.sandbox import driver

Kind = Literal["bubblewrap", "rlimits"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "rlimits")
DESCRIPTIONS = {
    "bubblewrap": "in bubblewrap: no network, read-only files, no other process visible",
    "rlimits": "under resource limits only: network and files of this machine are open to them",
}
PATH = "/usr/bin:/bin"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
TMP_BYTES = 64 << 20
NOBODY = "65534"
PROBE_S = 30.0
PROBE = {"program": "print(6 * 7)", "tests": [{"stdin": ""}], "timeout_s": 20.0, "memory": 1 << 30}


@dataclass(frozen=True)
class Sandbox:
    kind: Kind
    full: bool = True  # of bubblewrap: with options that old versions lack

    @property
    def description(self) -> str:
        return f"programs of the model run {DESCRIPTIONS[self.kind]}"

    def start(self, folder: str) -> subprocess.Popen[bytes]:
        """Start the driver, which waits for its job on stdin. `folder`: where it writes if it has no own /tmp."""
        return subprocess.Popen(
            _bubblewrap(full=self.full) if self.kind == "bubblewrap" else _rlimits(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )


def _rlimits() -> list[str]:
    return [sys.executable, "-I", "-m", "rhymed_workers.sandbox.limits", str(os.getpid())]


def _bubblewrap(*, full: bool) -> list[str]:
    binds = [word for path in _visible() for word in ("--ro-bind", path, path)]
    size = ["--size", str(TMP_BYTES)] if full else []
    user = ["--uid", NOBODY, "--gid", NOBODY] if full else []
    # --as-pid-1: the program could write reports through the descriptors of bubblewrap's own init.
    return [
        *("bwrap", "--as-pid-1", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(*user, *binds, "--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *(sys.executable, "-I", "-c", _driver()),
    ]


def choose(kind: str) -> Sandbox | None:
    """The strongest sandbox that works, or the one of this kind; None if that does not work here."""
    for candidate in KINDS if kind == "auto" else [known for known in KINDS if known == kind]:
        for sandbox in (Sandbox(candidate), *([Sandbox(candidate, full=False)] if candidate == "bubblewrap" else [])):
            if works(sandbox):
                return sandbox
    return None


def advice() -> str:
    """What to do where bubblewrap does not work."""
    if shutil.which("bwrap", path=PATH) is None:
        return "install bubblewrap, e.g. `apt install bubblewrap`"
    return "bubblewrap is installed, but the kernel or the container does not let it make namespaces"


def works(sandbox: Sandbox) -> bool:
    if sandbox.kind == "bubblewrap" and shutil.which("bwrap", path=PATH) is None:
        return False
    with private.TemporaryFolder("rhymed-code") as folder, sandbox.start(str(folder)) as process:
        try:
            output, _ = process.communicate(json.dumps(PROBE).encode(), timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return False
    reports = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    return {"how": "ok", "text": "42\n"} in reports


@functools.cache
def _driver() -> str:
    return Path(driver.__file__).read_text()


@functools.cache
def _visible() -> list[str]:
    """Paths of the system's programs and libraries and of this Python; none inside another."""
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable), Path(sys.executable).resolve())
    visible: list[Path] = []
    for path in (*map(Path, SYSTEM), *python):
        if path.exists() and not any(path.is_relative_to(parent) for parent in visible):
            visible.append(path)
    return [str(path) for path in visible]


def job(program: str, tests: list[dict[str, Any]], timeout_s: float, memory: int) -> bytes:
    """The driver's input. `memory`: bytes."""
    return json.dumps({"program": program, "tests": tests, "timeout_s": timeout_s, "memory": memory}).encode()
