"""Machines of a Ray cluster on this one: `ray.cluster_utils`, which starts Ray's processes of every node.

A machine that is lost takes the processes of the run with it, so they are killed with Ray's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import psutil

from rhymed.core.errors import ConfigError

GUARDIAN = "rhymed.placement.ray.guardian"
STORE_BYTES = 80 << 20  # Ray's object store, which a run does not use
MARK = "RHYMED_BENCH_CLUSTER"  # in the environment of all that its nodes start
STARTS = 3  # attempts, for a node
RAYLET_PATIENCE_S = 5  # without Ray's head, what is connected to it ends after this, instead of 60 s


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
        self._mark = self._folder = ""
        self._environ: dict[str, str] = {}

    def __enter__(self) -> Self:
        # Not in /tmp, where another cluster of this machine notes its address, and where guardians that are killed
        # leave files. Paths of sockets have to be short.
        self._folder, self._mark = tempfile.mkdtemp(prefix="rhymed-ray-", dir="/tmp"), uuid.uuid4().hex
        os.makedirs(f"{self._folder}/ray")
        self._environ = {name: os.environ[name] for name in ("TMPDIR", "RAY_TMPDIR") if name in os.environ}
        os.environ.update({MARK: self._mark, "TMPDIR": self._folder, "RAY_TMPDIR": self._folder})
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        try:
            from ray.cluster_utils import Cluster
        except ImportError:
            raise ConfigError(
                "python -m benchmarks cluster needs the package ray: pip install 'rhymed[ray]'"
            ) from None
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        patience = {"gcs_rpc_server_reconnect_timeout_s": RAYLET_PATIENCE_S, "agent_register_timeout_ms": 25_000}
        arguments = {**head, "_system_config": patience}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=arguments))
        for _ in range(self._count):
            self.add()

    def __exit__(self, *_: object) -> None:
        self._stop_all()
        for name in (MARK, "TMPDIR", "RAY_TMPDIR"):
            del os.environ[name]
        os.environ.update(self._environ)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int | None = None, environment: dict[str, str] | None = None) -> None:
        """One more machine. `environment`: besides ours, for all that runs there."""
        wanted = {"num_cpus": cpus or self._cpus, "object_store_memory": STORE_BYTES, "env_vars": environment or {}}
        self._nodes.append(_started(lambda: self._cluster.add_node(**wanted)))

    def kill(self, process: str, *, ray_alone: bool = False) -> None:
        """The machine on which this process of the run is, with all that runs there. `ray_alone`: only Ray dies, and
        guardians have to end what it started."""
        node = self._node_of(process)
        raylet = self._raylet_of(node)
        self._kill_node(node, [] if ray_alone else [one.pid for one in self.watched() if one.raylet == raylet])
        self._nodes.remove(node)

    def kill_process(self, process: str) -> None:
        """This process of the run alone: its guardian lives."""
        for one in self.watched():
            if one.name == process:
                _kill([child.pid for child in psutil.Process(one.pid).children()])

    def kill_head(self) -> None:
        if self._cluster is not None and self._cluster.head_node is not None:
            _kill_ray(self._cluster.head_node)
            self._cluster.head_node = None

    def _stop_all(self) -> None:
        _kill([process.pid for process in psutil.process_iter() if _mark_of(process) == self._mark])
        for node in self._nodes:
            _kill_ray(node)
        self.kill_head()

    def watched(self) -> list[Watched]:
        """The guardians of this cluster: others on this machine belong to somebody's run."""
        return list(self._watched())

    def _watched(self) -> Iterator[Watched]:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if GUARDIAN in words and len(words) > words.index(GUARDIAN) + 2 and _mark_of(process) == self._mark:
                name, keeper = words[words.index(GUARDIAN) + 1 :][:2]
                yield Watched(name, process.pid, _parent(int(keeper)))

    def _node_of(self, process: str) -> Any:
        raylets = {found.name: found.raylet for found in self.watched()}
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


def _started(start: Callable[[], Any]) -> Any:
    """Ray waits 20 s for parts of a node, which a busy machine may exceed; it then leaves the others behind."""
    why: object = None
    for _ in range(STARTS):
        before = _children()
        try:
            return start()
        except Exception as error:
            why = error
            for pid in _children() - before:
                _kill_with_children(pid)
    raise ConfigError(f"Ray starts no node here: {why}")


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _parent(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0


def _mark_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.environ().get(MARK, ""))
    return ""


def _kill_ray(node: Any) -> None:
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _kill_with_children(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        _kill([pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))])


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
