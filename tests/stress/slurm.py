"""`python -m tests.stress.slurm`: a run on a Slurm cluster whose jobs are cancelled and requeued, then an audit.

The cluster is slurmctld and three slurmd on this machine (`tests.stress.cluster`). The run is what `submit.sh` of
`rhymed launch slurm` submits: a job for store, broker and uploader, one for the trainer, arrays of rollout and reward
workers. In the middle of the run an element of the array is cancelled, one is requeued, a second head is submitted,
the jobs of a node are preempted, an element is added, trainer and head are requeued, and a node goes down. The test
passes when every sample was trained once, the bits are those of a calm run of `rhymed run`, and the copy in
`run.remote` is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.twins import compare_runs
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.placement.slurm import SUBMIT
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.head import found_lease
from rhymed.records.remote.place import open_place
from tests.ports import free_ports, is_free
from tests.stress import command
from tests.stress.cluster import Cluster
from tests.stress.run import REWARD, LiveRun, Shape

NODES = 3
HOLD = "hold"  # while this file is there, nothing is scored
SCORER = f'''{REWARD}

import os
import time

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{HOLD}")
at_once = reward


def reward(completions, **columns):
    while os.path.exists(FILE):
        time.sleep(0.05)
    return at_once(completions, **columns)
'''
STEP_S = 240.0  # for a step between faults, after which the run hangs
END_S = 120.0


class Fault(NamedTuple):
    name: str
    act: Callable[[Cluster, dict[str, str], Path], None]  # cluster, name -> job id, folder of the scripts
    joins: int = 1  # of rollout workers that come back; the run is held until they have


FAULTS = [
    Fault(
        "an element of the rollout array is cancelled",
        lambda c, ids, _: _do(c, "scancel", f"{ids['rollout']}_0"),
        joins=0,
    ),
    Fault(
        "another one is requeued",
        lambda c, ids, _: _do(c, "scontrol", "requeue", f"{ids['rollout']}_1"),
    ),
    Fault("a second head is submitted, and waits", lambda c, _, folder: _second_head(c, folder), joins=0),
    Fault("jobs of a node are preempted", lambda c, ids, _: _preempt(c, ids["rollout"])),
    Fault(
        "an element is added",
        lambda c, _, folder: _do(c, "sbatch", "--array=7", str(folder / "rollout.sbatch")),
    ),
    Fault("the trainer is requeued", lambda c, ids, _: _do(c, "scontrol", "requeue", ids["trainer"]), joins=0),
    Fault("the head is requeued", lambda c, ids, _: _do(c, "scontrol", "requeue", ids["head"]), joins=0),
    Fault("a node goes down, and is back", lambda c, ids, _: _node_down(c, ids["rollout"])),
]


def run(
    quick: bool, steps: int | None = None, out: Path | None = None, faults: Sequence[Fault] = FAULTS
) -> dict[str, Any]:
    """`steps`: of each run; `out`: a folder that keeps the runs."""
    folder = (out or Path(tempfile.mkdtemp(prefix="rhymed-slurm-"))).resolve()
    patient = {"reward": {"timeout_s": 2 * STEP_S}, "schedule": {"stuck_after_s": 20 * STEP_S}}
    shape = Shape(steps or (28 if quick else 140), rollout=3, reward=1, settings=patient, scorer=SCORER)
    calm = _calm(shape, folder)
    with Cluster(folder / "cluster", NODES) as cluster:
        broken = _on_cluster(shape, folder, cluster, faults)
    result = _judge(calm, broken, _copied(folder / "shared", shape.steps)) | {"joins": _joins(broken)}
    result["folder"] = str(folder)
    for fault in result["wrong"][:20]:
        print(f"wrong: {fault}")
    print("passed: every sample once, and the same as in the calm run" if result["good"] else f"failed; see {folder}")
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _calm(shape: Shape, folder: Path) -> RunLayout:
    began = time.monotonic()
    with LiveRun(shape.write(folder, "calm")) as live:
        if status := live.wait():
            raise ConfigError(f"the calm run ended with status {status}:\n{live.tail()}")
    print(f"calm: {time.monotonic() - began:.0f} s", flush=True)
    return live.where


def _on_cluster(shape: Shape, folder: Path, cluster: Cluster, faults: Sequence[Fault]) -> RunLayout:
    (folder / "shared").mkdir()
    copied = dataclasses.replace(shape, settings=shape.settings | {"run": {"remote": str(folder / "shared")}})
    file = copied.write(folder, "broken")
    where, scripts = layout_of(load_config(file)), folder / "broken-slurm"
    ids = _launch(cluster, file, scripts)
    began, every = time.monotonic(), shape.steps // (len(faults) + 1)
    for number, fault in enumerate(faults, 1):
        wanted = number * every
        cluster.until(lambda wanted=wanted: _steps(where) >= wanted, f"step {wanted}", STEP_S)  # type: ignore[misc]
        print(f"{time.monotonic() - began:6.1f} s  step {_steps(where)}: {fault.name}", flush=True)
        with _held(cluster, folder, where, fault):
            fault.act(cluster, ids, scripts)
    cluster.until(lambda: _steps(where) >= shape.steps, "the last step", STEP_S)
    cluster.until(lambda: not cluster.jobs(), "all jobs have ended", END_S)
    print(f"{time.monotonic() - began:6.1f} s  all jobs have ended", flush=True)
    return where


@contextlib.contextmanager
def _held(cluster: Cluster, folder: Path, where: RunLayout, fault: Fault) -> Iterator[None]:
    """Nothing is scored from before the fault until the workers that it costs are back: Slurm takes its time, and the
    run must not end before them."""
    if not fault.joins:
        yield
        return
    wanted = _joins(where) + fault.joins
    (folder / HOLD).touch()
    try:
        yield
        cluster.until(lambda: _joins(where) >= wanted, f"{wanted} joins of rollout workers", STEP_S)
    finally:
        (folder / HOLD).unlink()


def _joins(where: RunLayout) -> int:
    """Of rollout workers so far."""
    log = (where.folder / "logs" / "broker.log").read_text()
    return sum(" joined " in line and "rollout-" in line for line in log.splitlines())


def _launch(cluster: Cluster, file: Path, scripts: Path) -> dict[str, str]:
    """Name of a job -> its id."""
    words = [sys.executable, "-m", "rhymed", "launch", "slurm", str(file), "--out", str(scripts)]
    words += ["--sbatch", "rollout:--exclude=n0"]  # the node of the head
    words += ["--first-port", f"{_four_ports()}"]
    done = subprocess.run(words, env=cluster.environ, cwd=file.parent, capture_output=True, text=True, timeout=END_S)
    if done.returncode:
        raise ConfigError(f"rhymed launch: {done.stderr.strip()}")
    submitted = cluster.call("sh", str(scripts / SUBMIT))
    print(submitted, flush=True)
    return {name: number for number, name in map(str.split, submitted.splitlines())}


def _four_ports() -> int:
    """The first of four in a row that are free."""
    while True:
        first = free_ports(1)[0]
        if all(is_free(port) for port in range(first, first + 4)):
            return first


def _do(cluster: Cluster, *words: str) -> None:
    cluster.call(*words)


def _second_head(cluster: Cluster, folder: Path) -> None:
    number = cluster.call("sbatch", "--parsable", str(folder / "head.sbatch"))
    cluster.until(
        lambda: cluster.call("squeue", "-h", "-j", number, "-o", "%T %r") == "PENDING Dependency", "it waits"
    )
    cluster.call("scancel", number)


def _preempt(cluster: Cluster, rollout: str) -> None:
    """By a job of a partition of higher priority that wants the whole node of an element."""
    node = _node(cluster, rollout)
    words = [
        "sbatch",
        "--partition=urgent",
        f"--nodelist={node}",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 3",
    ]
    cluster.call(*words)


def _node_down(cluster: Cluster, rollout: str) -> None:
    """Slurm requeues what ran there."""
    node = _node(cluster, rollout)
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=stress")
    with contextlib.suppress(ConfigError):  # it is back already if its slurmd reported meanwhile (ReturnToService=2)
        cluster.call("scontrol", "update", f"nodename={node}", "state=resume")


def _node(cluster: Cluster, rollout: str) -> str:
    """Of the array's last element, once it has one."""
    words = ["squeue", "-h", "-r", "-j", f"{rollout}_2", "-o", "%N"]
    cluster.until(lambda: bool(cluster.call(*words)), "the last element runs")
    return cluster.call(*words)


def _steps(where: RunLayout) -> int:
    """Trained so far: a step that is trained again has a second line."""
    try:
        rows = [json.loads(line) for line in where.metrics.read_text().splitlines()]
    except (OSError, ValueError):
        return 0
    return 1 + max((row["step"] for row in rows if "actor/lr" in row or "rollout/samples" in row), default=-1)


def _copied(shared: Path, steps: int) -> list[str]:
    """What the copy lacks at the end of the run."""
    place = open_place(str(shared)).child("broken")
    backups, lease = [backup.steps for backup in Backups(place).all()], found_lease(place)
    wrong = [] if backups[-1:] == [steps] else [f"the copy has backups after {backups} steps, not {steps}"]
    return wrong + ([] if lease is not None and lease.released else ["the copy was not given back"])


def _judge(calm: RunLayout, broken: RunLayout, wrong: list[str]) -> dict[str, Any]:
    """`wrong`: what was found so far."""
    with open_folder(calm.folder) as one, open_folder(broken.folder) as other:
        peace, war = audit(one), audit(other)
    both = compare_runs(calm.folder, broken.folder)
    wrong += [f"calm: {fault}" for fault in peace.wrong] + [f"broken: {fault}" for fault in war.wrong + both.wrong]
    wrong += [f"{war.dropped} samples were dropped"] if war.dropped else []
    return {"steps": war.steps, "samples": war.trained, "audit": both.weights, "wrong": wrong, "good": not wrong}


def main() -> int:
    parser = command.parser("tests.stress.slurm", "train on a Slurm cluster whose jobs are cancelled and requeued")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
