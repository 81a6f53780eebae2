"""Submits what was written to Slurm, after a look at what the cluster has."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rhymed.core.atomic import write_all
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import counted, quoted
from rhymed.core.wire.keys import PUBLIC, ROLES, make_keys, read_public, read_secret, secret_name
from rhymed.placement.plan import Seat
from rhymed.placement.slurm import SUBMIT, Job, Options

DEADLINE_S = 60.0


def submit(options: Options, jobs: Sequence[Job], names: Sequence[str]) -> list[str]:
    """Submits the written scripts; lines of job ids and names. Raises `ConfigError`, and then no job is left.
    `names`: of the jobs, in Slurm."""
    check_slurm(options, jobs)
    _refuse_second(names)
    try:
        done = _call("sh", str(options.folder / SUBMIT))
    except BaseException:  # also Ctrl-C
        _cancel(names)
        raise
    if done.returncode:
        _cancel(names)
        reason = done.stderr.strip().replace("\n", " ") or f"status {done.returncode}"
        raise ConfigError(f"Slurm refused a job, so none of the run is left there: {reason}")
    return done.stdout.splitlines()


def _cancel(names: Sequence[str]) -> None:
    """All jobs of the run: none was there before."""
    _call("scancel", f"--user={getpass.getuser()}", f"--name={','.join(names)}")


def _refuse_second(names: Sequence[str]) -> None:
    """Raises `ConfigError` for a run that is in the queue: its second head would wait for the first one's store."""
    done = _call(
        "squeue", "--noheader", f"--user={getpass.getuser()}", f"--name={','.join(names)}", "--format=%A %j %T"
    )
    if found := done.stdout.splitlines():
        raise ConfigError(
            f"the run is in the queue already ({', '.join(found[:4])}): end it with scancel --name={','.join(names)},"
            " or give this run another run.name"
        )


def check_slurm(options: Options, jobs: Sequence[Job]) -> None:
    """Raises `ConfigError`: no Slurm here, a partition that is not there, or too few GPUs on its nodes."""
    for tool in ("sbatch", "sinfo", "squeue", "scancel"):
        if shutil.which(tool) is None:
            raise ConfigError(
                f"{tool} is not installed here: use a login node of the cluster, or leave --submit out, copy"
                f" {options.folder} there under the same path and run {SUBMIT} in it"
            )
    done = _call("sinfo", "--noheader", "--format=%R %G")
    if done.returncode:
        raise ConfigError(f"Slurm does not answer: {done.stderr.strip() or f'sinfo ended with {done.returncode}'}")
    gpus: dict[str, int] = {}
    for line in done.stdout.splitlines():
        partition, _, resources = line.partition(" ")
        gpus[partition] = max(gpus.get(partition, 0), gpus_of(resources))
    for job in jobs:
        if why := wrong_partition(job, options.partition_of(job.gpus), gpus):
            raise ConfigError(why)


def wrong_partition(job: Job, partition: str, gpus: Mapping[str, int]) -> str:
    """Pure; `gpus`: of the largest node of each partition. Several partitions may be named, with commas."""
    names = [name for name in partition.split(",") if name]
    for name in names:
        if name not in gpus:
            return f"there is no partition {name}; there are {', '.join(sorted(gpus))}"
    most = max((count for name, count in gpus.items() if not names or name in names), default=0)
    if job.gpus <= most:
        return ""
    where = f"partition {partition}" if partition else "this cluster"
    has = f"a node of {where} has {most}" if most else f"{where} has none"
    return (
        f"a {job.name} job asks for {counted(job.gpus, 'GPU')} of one node, but {has}: choose --partition, or --cpu"
    )


def gpus_of(resources: str) -> int:
    """Of a node, from Slurm's generic resources: `gpu:h100:8(S:0-1),shard:16` -> 8."""
    found = re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", resources)
    return sum(map(int, found))


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command[0]} did not answer within {DEADLINE_S:g} s: is Slurm up?") from None


# Writes what was rendered to a folder, with the keys that it needs.

MOUNTS = Path("/proc/self/mounts")
OF_ONE = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs")
"""File systems that one machine mounts."""


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Files that are there already with other contents are kept without `force`. Raises `ConfigError`."""
    texts = {folder / name: text for name, text in files.items()}
    changed = [file for file, text in texts.items() if _differs(file, text)]
    return write_all(texts, changed, "another folder by --out", force=force)


def _differs(file: Path, text: str) -> bool:
    try:
        return file.read_text() != text
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True


def all_keys(config: Config, folder: Path, seats: Iterable[Seat]) -> Path:
    """The folder with every role's keys: the configured one, or one that is made here. Raises `ConfigError`."""
    keys = Path(config.net.keys).expanduser().resolve() if config.net.keys else folder / "keys"
    if not config.net.keys:
        try:
            make_keys(keys, ROLES)
        except OSError as error:
            raise ConfigError(f"{keys}: {error.strerror or error}") from None
    public = set(read_public(keys).values())
    for seat in seats:
        read_secret(keys, seat.role)
        if seat.role not in public:
            raise ConfigError(f"{keys / PUBLIC} has no key of {seat.role}: `rhymed keygen {quoted(keys)}` makes one")
    return keys


def split_keys(keys: Path, folder: Path, seats: Iterable[Seat]) -> None:
    """A folder for each role in `folder`, with links to its own two files, so that a changed key is changed there."""
    for seat in seats:
        own = folder / seat.role
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (PUBLIC, secret_name(seat.role)):
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(keys / name)


def unshared(paths: Iterable[Path]) -> list[str]:
    """A warning for each folder that other machines do not see, as far as its file system shows."""
    try:
        mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for path in dict.fromkeys(paths):
        kind = _file_system(path.resolve(), mounts)
        if kind in OF_ONE:
            found.append(
                f"{path} is on {kind}, a file system of this machine, so jobs on other nodes may not find it:"
                " choose a folder on shared storage, with the same path on all nodes"
            )
    return found


def _file_system(path: Path, mounts: Sequence[Sequence[str]]) -> str:
    """Of the longest mount point above the path."""
    above = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point.replace("\\040", " "))]
    return max(above, default=(0, ""))[1]
