"""Which sandbox programs of a model can run in on this machine, and the command that starts one.

From the strongest: `bubblewrap` where it is installed and works, `namespace` (rhymed_workers.sandbox.isolate) where the kernel
lets us make the same ourselves, `rlimits` everywhere: time, memory and sizes are bounded, but network and files are
not shut off. Each is tried once, by running Python in it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rhymed_workers.sandbox import driver

Kind = Literal["bubblewrap", "namespace", "rlimits"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "namespace", "rlimits")
WORDS = {
    "bubblewrap": "in bubblewrap: no network, read-only files, no other process to be seen",
    "namespace": "in namespaces of their own: no network, read-only files, no other process to be seen",
    "rlimits": "under resource limits only: network and files of this machine are open to them",
}
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
TMP_BYTES = 64 << 20
NOBODY = "65534"
PROBE_S = 30.0
PROBE = {"program": "print(6 * 7)", "tests": [{"stdin": ""}], "timeout_s": 20.0, "memory": 1 << 30}


@dataclass(frozen=True)
class Sandbox:
    kind: Kind
    full: bool = True  # of bubblewrap: also what needs a newer one

    @property
    def words(self) -> str:
        return f"programs of the model run {WORDS[self.kind]}"

    def start(self, folder: str) -> subprocess.Popen[bytes]:
        """With the driver in it, waiting for its job on stdin. `folder`: where it writes if it has no own /tmp."""
        return subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def _command(self) -> list[str]:
        if self.kind == "bubblewrap":
            binds = [word for path in _visible() for word in ("--ro-bind", path, path)]
            size = ["--size", str(TMP_BYTES)] if self.full else []
            who = ["--uid", NOBODY, "--gid", NOBODY] if self.full else []
            # With an init of bubblewrap's own the program could write reports through that one's descriptors.
            return [
                *(
                    "bwrap",
                    "--as-pid-1",
                    "--unshare-all",
                    "--die-with-parent",
                    "--new-session",
                    "--cap-drop",
                    "ALL",
                    *who,
                    *binds,
                ),
                *("--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/tmp"),
                *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
                *(sys.executable, "-I", "-c", _driver()),
            ]
        spec = {"parent": os.getpid(), "isolate": self.kind == "namespace", "visible": _visible(), "bytes": TMP_BYTES}
        return [sys.executable, "-I", "-m", "rhymed_workers.sandbox.isolate", json.dumps(spec)]


def choose(wanted: str) -> Sandbox | None:
    """The strongest that works, or the one that is wanted; None if that does not work here."""
    for kind in KINDS if wanted == "auto" else [one for one in KINDS if one == wanted]:
        for sandbox in (Sandbox(kind), *([Sandbox(kind, full=False)] if kind == "bubblewrap" else [])):
            if works(sandbox):
                return sandbox
    return None


def works(sandbox: Sandbox) -> bool:
    if sandbox.kind == "bubblewrap" and shutil.which("bwrap", path="/usr/bin:/bin") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="rhymed-code-") as folder, sandbox.start(folder) as process:
        try:
            said, _ = process.communicate(json.dumps(PROBE).encode(), timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return False
    lines = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
    return {"how": "ok", "text": "42\n"} in lines


@functools.cache
def _driver() -> str:
    return Path(driver.__file__).read_text()


@functools.cache
def _visible() -> list[str]:
    """The system's programs and libraries, and this Python's. Each once, none inside another."""
    paths = [Path(one) for one in SYSTEM] + list(_python())
    found: list[Path] = []
    for path in paths:
        if path.exists() and not any(path.is_relative_to(one) for one in found):
            found.append(path)
    return [str(path) for path in found]


def _python() -> Iterator[Path]:
    yield Path(sys.prefix)
    yield Path(sys.base_prefix)
    yield Path(sys.executable)
    yield Path(sys.executable).resolve()


def job(program: str, tests: list[dict[str, Any]], timeout_s: float, memory: int) -> bytes:
    """What the driver reads."""
    return json.dumps({"program": program, "tests": tests, "timeout_s": timeout_s, "memory": memory}).encode()
