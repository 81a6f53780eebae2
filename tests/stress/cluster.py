"""A Slurm cluster on this machine: slurmctld, munged, and a slurmd for each of several nodes, in a folder of its own.

Needs Debian's slurmctld, slurmd, slurm-client and munge, whose slurmd may run several times on one machine. Uses no
service of the system; everything ends with the block.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rhymed.core.errors import ConfigError
from tests.ports import free_ports

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
DEADLINE_S = 60.0
CONF = """
ClusterName=rhymed
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=16000\n"


def missing_tools() -> str:
    """Why there can be no cluster here; empty if there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    return f"{', '.join(missing)} must be installed (slurmctld, slurmd, slurm-client, munge)" if missing else ""


class Cluster:
    """`with Cluster(folder, 3) as cluster: cluster.call("squeue")`."""

    def __init__(self, folder: Path, nodes: int, cpus: int = 16) -> None:
        """`cpus`: of each node, as Slurm counts them; the machine may have fewer."""
        self._folder = folder.resolve()
        self._names, self._cpus = [f"n{number}" for number in range(nodes)], cpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def __enter__(self) -> Cluster:
        if why := missing_tools():
            raise ConfigError(why)
        self._write()
        try:
            self._start_munge()
            self._start("slurmctld", "-D")
            for name in self._names:
                self._start("slurmd", "-D", "-N", name)
            self.until(
                lambda: self.call("sinfo", "-h", "-o", "%t %D") == f"idle {len(self._names)}", "nodes are idle"
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ConfigError, subprocess.TimeoutExpired):
            self.call("scancel", f"--user={getpass.getuser()}")
            self.until(lambda: not self.jobs(), "jobs have ended")
        for daemon in reversed(self._daemons):  # munged last
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                daemon.send_signal(signal.SIGKILL)
                daemon.wait()

    def call(self, *command: str) -> str:
        """Its output. Raises `ConfigError`."""
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode:
            raise ConfigError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """`JOB_ELEMENT NAME STATE` of all that have not ended."""
        return self.call("squeue", "-h", "-r", "-o", "%i %j %T").splitlines()

    def until(self, fine: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + seconds
        while not self._holds(fine):
            if time.monotonic() > deadline:
                raise ConfigError(f"not within {seconds:g} s: {what}; jobs: {self.jobs()}; see {self._folder}")
            time.sleep(0.2)

    @staticmethod
    def _holds(fine: Callable[[], bool]) -> bool:
        try:
            return fine()
        except ConfigError:  # the daemons are still starting
            return False

    def _write(self) -> None:
        for name in ("state", "munge"):
            (self._folder / name).mkdir(mode=0o700, parents=True)
        key = self._folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host, ports = socket.gethostname(), free_ports(len(self._names) + 1)
        text = CONF.format(host=host, user=getpass.getuser(), folder=self._folder, port=ports[0])
        for name, port in zip(self._names, ports[1:], strict=True):
            text = NODE.format(name=name, host=host, port=port, cpus=self._cpus) + text
        (self._folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        own = self._folder / "munge"
        options = [f"--{name}={own / name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
        self._start("munged", "--foreground", "--force", *options, f"--seed-file={own / 'seed'}")
        self.until((own / "socket").exists, "munged listens")

    def _start(self, *command: str) -> None:
        with (self._folder / "daemons.out").open("ab") as out:
            started = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._daemons.append(started)
