"""Machines of a Ray cluster on this one: `ray.cluster_utils`, which starts Ray's processes of every node.

A machine that is lost takes the processes of the run with it, so they are killed with Ray's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import psutil

from rhymed.errors import ConfigError

GUARDIAN = "rhymed.placement.ray.guardian"
STORE_BYTES = 80 << 20  # Ray's object store, which a run does not use
RAYLET_PATIENCE_S = 5  # without Ray's head, a node's Ray ends after this, instead of 60 s


class Watched(NamedTuple):
    """A guardian, and which process of the run it watches over."""

    name: str
    pid: int
    raylet: int  # of the node; 0: its keeper is gone


class Machines:
    """`with Machines(3, cpus=2) as machines: …`; the head has no processors, so nothing is placed there."""

    def __init__(self, count: int, cpus: int) -> None:
        self._count, self._cpus = count, cpus
        self._nodes: list[Any] = []
        self._cluster: Any = None

    def __enter__(self) -> Self:
        try:
            from ray.cluster_utils import Cluster
        except ImportError:
            raise ConfigError("rhymed bench cluster needs the package ray: pip install 'rhymed[ray]'") from None
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        patience = {"gcs_rpc_server_reconnect_timeout_s": RAYLET_PATIENCE_S}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": patience})
        for _ in range(self._count):
            self.add()
        return self

    def __exit__(self, *_: object) -> None:
        for one in watched():
            _kill_with_children(one.pid)
        for node in self._nodes:
            self._kill_node(node, [])
        self.kill_head()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE_BYTES))

    def kill(self, process: str, *, ray_alone: bool = False) -> None:
        """The machine on which this process of the run is, with all that runs there. `ray_alone`: only Ray dies, and
        guardians have to end what it started."""
        node = self._node_of(process)
        raylet = self._raylet_of(node)
        self._kill_node(node, [] if ray_alone else [one.pid for one in watched() if one.raylet == raylet])
        self._nodes.remove(node)

    def kill_head(self) -> None:
        if self._cluster is not None and self._cluster.head_node is not None:
            _kill_ray(self._cluster.head_node)
            self._cluster.head_node = None

    def _node_of(self, process: str) -> Any:
        raylets = {found.name: found.raylet for found in watched()}
        for node in self._nodes:
            if self._raylet_of(node) == raylets.get(process):
                return node
        raise ConfigError(f"{process} runs on no machine of the cluster")

    def _raylet_of(self, node: Any) -> int:
        return int(node.all_processes["raylet"][0].process.pid)

    def _kill_node(self, node: Any, guardians: list[int]) -> None:
        """Ray's processes of a node, and these guardians with what they started."""
        for pid in guardians:
            _kill_with_children(pid)
        _kill_ray(node)


def watched() -> list[Watched]:
    """All guardians of this machine."""
    return list(_watched())


def _watched() -> Iterator[Watched]:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if GUARDIAN in words and len(words) > words.index(GUARDIAN) + 2:
            name, keeper = words[words.index(GUARDIAN) + 1 :][:2]
            yield Watched(name, process.pid, _parent(int(keeper)))


def _parent(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0


def _kill_ray(node: Any) -> None:
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _kill_with_children(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
