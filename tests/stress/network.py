"""Machines of a Ray cluster as network namespaces, each with an address and an identity of its own. Needs root."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster.machines import RAYLET_PATIENCE_S, STARTS, STORE_BYTES, Machines
from benchmarks.hosts.network import Hosts
from rhymed.core.errors import ConfigError

PORT = 6379
START_S = 120.0
KNOWN = "Ray runtime started."  # `ray start` prints this once the head has the node in its table
MOST = 12  # hosts in all, those that are added included


@dataclass
class Node:
    """One `ray start`, with all that it has started."""

    number: int
    process: subprocess.Popen[bytes]

    def raylet(self) -> int:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.name().startswith("raylet"):
                    return int(child.pid)
        return 0


class Network(Machines):
    """The head is the first host; `rhymed run` runs there, too."""

    def _start_all(self) -> None:
        self._head: Node | None = None
        self._started, self._ends = 0, contextlib.ExitStack()
        self._hosts = self._ends.enter_context(Hosts(MOST, 0))
        patience = f'{{"gcs_rpc_server_reconnect_timeout_s": {RAYLET_PATIENCE_S}}}'
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--system-config={patience}"]
        self._head = self._start("--num-cpus=0", *head)
        for _ in range(self._count):
            self.add()

    def _stop_all(self) -> None:
        for number in range(self._started):
            _kill(self._hosts.processes(number))
        for node in [*self._nodes, *([self._head] if self._head else [])]:
            node.process.wait()
        self._ends.close()

    @property
    def address(self) -> str:
        return f"{self._hosts.address(0)}:{PORT}"

    @property
    def prefix(self) -> list[str]:
        """Of a command that runs next to Ray's head."""
        return self._hosts.command(0)

    def add(self) -> None:
        self._nodes.append(self._start(f"--num-cpus={self._cpus}", f"--address={self.address}"))

    def kill_head(self) -> None:
        if self._head is not None:
            _kill([child.pid for child in psutil.Process(self._head.process.pid).children(recursive=True)])
            self._head.process.kill()
            self._head.process.wait()
            self._head = None

    def _raylet_of(self, node: Any) -> int:
        return int(node.raylet())

    def _kill_node(self, node: Any, guardians: list[int]) -> None:
        ray = [node.process.pid, *(child.pid for child in psutil.Process(node.process.pid).children(recursive=True))]
        _kill([*ray, *(self._hosts.processes(node.number) if guardians else [])])
        node.process.wait()

    def _start(self, *options: str) -> Node:
        """On the next host. Ray's head knows the node when this returns. `ray start` waits 30 s for that, too short
        where other programs run.
        """
        number, self._started = self._started, self._started + 1
        if number >= MOST:
            raise ConfigError(f"there are {MOST} hosts only")
        output = Path(self._folder) / f"host-{number}.out"
        for _ in range(STARTS):
            process = self._ray_start(number, output, *options)
            end = time.monotonic() + START_S
            while process.poll() is None and time.monotonic() < end:
                if KNOWN in output.read_text(errors="replace"):
                    return Node(number, process)
                time.sleep(0.2)
            _kill([process.pid, *self._hosts.processes(number)])
            status = process.wait()
        said = output.read_text(errors="replace").strip().splitlines()[-1:]
        raise ConfigError(f"Ray does not start on host {number} (status {status}): {''.join(said)}")

    def _ray_start(self, number: int, output: Path, *options: str) -> subprocess.Popen[bytes]:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        own = [f"--node-ip-address={self._hosts.address(number)}", f"--object-store-memory={STORE_BYTES}"]
        with output.open("wb") as out:
            return subprocess.Popen(
                [*self._hosts.command(number), *ray, *own, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._hosts.environment(),
            )


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
