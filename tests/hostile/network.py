"""Two hosts on one machine: network namespaces with one address each, and a cable that can be cut or lose packets.

Needs root, `ip`, and `nft` for loss. The second host has its own identity (see `rhymed.core.service.host`), so
weights are sent over the wire as between machines. Everything is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from rhymed.core.errors import ConfigError
from rhymed.core.service.host import BOOT_ID

NEAR, FAR = "10.77.13.1", "10.77.13.2"


def missing_tools() -> str:
    """Why hosts cannot be created here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nft", "mount") if shutil.which(tool) is None]
    return f"{', '.join(missing)} must be installed (iproute2, nftables)" if missing else ""


class Cable:
    """`with Cable() as cable: subprocess.Popen([*cable.near, …])`."""

    def __init__(self) -> None:
        name = f"rhymed{os.getpid()}"
        self._names = f"{name}a", f"{name}b"
        self._ends = f"ra{os.getpid()}", f"rb{os.getpid()}"
        self._identity = Path(tempfile.mkdtemp(prefix="rhymed-host-")) / "boot_id"

    def __enter__(self) -> Cable:
        if why := missing_tools():
            raise ConfigError(why)
        self._identity.write_text(f"{uuid.uuid4()}\n")
        try:
            for name in self._names:
                _do("ip", "netns", "add", name)
            _do("ip", "link", "add", self._ends[0], "type", "veth", "peer", "name", self._ends[1])
            for name, end, address in zip(self._names, self._ends, (NEAR, FAR), strict=True):
                _do("ip", "link", "set", end, "netns", name)
                self._inside(name, "ip", "addr", "add", f"{address}/24", "dev", end)
                self._inside(name, "ip", "link", "set", "lo", "up")
                self._inside(name, "ip", "link", "set", end, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self._identity.parent, ignore_errors=True)

    @property
    def near(self) -> list[str]:
        """Prefix of a command line that runs on the first host."""
        return ["ip", "netns", "exec", self._names[0]]

    @property
    def far(self) -> list[str]:
        """And on the second host, which has its own boot id."""
        masked = f'mount --bind "{self._identity}" {BOOT_ID} && exec "$@"'
        return ["ip", "netns", "exec", self._names[1], "sh", "-c", masked, "sh"]

    def cut(self) -> None:
        self._inside(self._names[1], "ip", "link", "set", self._ends[1], "down")

    def lose(self, percent: int) -> None:
        """Drops this percentage of packets, in both directions."""
        for name in self._names:
            rules = (
                "add table inet cable; flush table inet cable;"
                " add chain inet cable in { type filter hook input priority 0; };"
                f" add rule inet cable in iifname != lo numgen random mod 100 < {percent} drop"
            )
            self._inside(name, "nft", rules)

    def repair(self) -> None:
        """Undoes `cut` and `lose`."""
        self._inside(self._names[1], "ip", "link", "set", self._ends[1], "up")
        for name in self._names:
            self._inside(name, "nft", "add table inet cable; flush table inet cable")

    def _inside(self, name: str, *command: str) -> None:
        _do("ip", "netns", "exec", name, *command)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{' '.join(_shown(command))}: {done.stderr.strip() or done.returncode}")


def _shown(command: Sequence[str]) -> Sequence[str]:
    return command if len(command) < 8 else [*command[:8], "…"]
