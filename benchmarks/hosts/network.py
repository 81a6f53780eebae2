"""Hosts on one machine: network namespaces with one address each, at a switch, each with a line of a chosen rate.

Needs root and iproute2. Every host has its own identity (`rhymed.core.service.host`), and every process on it a file
system in memory, which ends with the process. Everything is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from rhymed.core.errors import ConfigError
from rhymed.core.service.host import BOOT_ID

NETWORK = "10.78.13"
QUEUE_S = 0.02  # of a line with a rate
MEMORY = "1024g"  # the caller knows what fits


def missing_tools(rate: bool) -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    wanted = ("ip", "mount", "tc") if rate else ("ip", "mount")
    missing = [tool for tool in wanted if shutil.which(tool) is None]
    return f"{', '.join(missing)} must be installed (iproute2, util-linux)" if missing else ""


class Hosts:
    """`with Hosts(3, 0) as hosts: subprocess.Popen([*hosts.command(0), …], env=hosts.environment())`."""

    def __init__(self, count: int, gbit: float) -> None:
        """`gbit` per second in each direction; 0: as fast as the machine is."""
        self._count, self._gbit = count, gbit
        self._name = f"rb{os.getpid()}"
        self._identities = Path(tempfile.mkdtemp(prefix="rhymed-hosts-"))
        self._memory = self._identities / "memory"

    def __enter__(self) -> Hosts:
        if why := missing_tools(bool(self._gbit)):
            raise ConfigError(why)
        try:
            self._do("ip", "netns", "add", self._switch)
            self._inside(self._switch, "ip", "link", "add", "switch", "type", "bridge")
            self._inside(self._switch, "ip", "link", "set", "switch", "up")
            for number in range(self._count):
                self._plug_in(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*(self._host(number) for number in range(self._count)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self._identities, ignore_errors=True)

    def address(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def command(self, number: int) -> list[str]:
        """Prefix of a command line that runs on this host."""
        identity = self._identities / str(number)
        memory = f'mount -t tmpfs -o size={MEMORY},mode=700 rhymed "{self._memory}"'
        masked = f'mount --bind "{identity}" {BOOT_ID} && {memory} && exec "$@"'  # mounts of the command's own
        return ["ip", "netns", "exec", self._host(number), "sh", "-c", masked, "sh"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RHYMED_SHARED_MEMORY": str(self._memory)}

    def processes(self, number: int) -> list[int]:
        """Process ids of all that runs on this host."""
        done = subprocess.run(
            ["ip", "netns", "pids", self._host(number)], check=False, capture_output=True, text=True
        )
        return [int(word) for word in done.stdout.split()]

    @property
    def _switch(self) -> str:
        return f"{self._name}s"

    def _host(self, number: int) -> str:
        return f"{self._name}h{number}"

    def _plug_in(self, number: int) -> None:
        host, port = self._host(number), f"port{number}"
        (self._identities / str(number)).write_text(f"{uuid.uuid4()}\n")
        self._memory.mkdir(exist_ok=True)
        self._do("ip", "netns", "add", host)
        inside = ("type", "veth", "peer", "name", port, "netns", self._switch)
        self._inside(host, "ip", "link", "add", "line", *inside)
        self._inside(host, "ip", "addr", "add", f"{self.address(number)}/24", "dev", "line")
        for link in ("lo", "line"):
            self._inside(host, "ip", "link", "set", link, "up")
        self._inside(self._switch, "ip", "link", "set", port, "master", "switch")
        self._inside(self._switch, "ip", "link", "set", port, "up")
        if self._gbit:
            for name, device in ((host, "line"), (self._switch, port)):
                rate = f"{round(self._gbit * 1000)}mbit"
                burst = str(max(1 << 16, round(self._gbit * 1e9 / 8 * 0.002)))
                shaped = ("root", "tbf", "rate", rate, "burst", burst, "latency", f"{round(1000 * QUEUE_S)}ms")
                self._inside(name, "tc", "qdisc", "add", "dev", device, *shaped)

    def _inside(self, name: str, *command: str) -> None:
        self._do("ip", "netns", "exec", name, *command)

    def _do(self, *command: str) -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
