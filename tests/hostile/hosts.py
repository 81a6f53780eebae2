"""`python -m tests.hostile.hosts`: a run over two hosts whose network fails, then an audit against the same run calm.

The first host has store, broker, trainer and one worker of each kind under `rhymed run`; the second has rollout
workers and a reward worker that are restarted when they end, as a container engine does. All links are TCP with keys.
The network is cut for shorter and for longer than `schedule.lost_after_s`, loses packets, and the second host
disappears. The test passes when both runs trained the same samples, bit for bit.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from tests.hostile.network import NEAR, Cable, missing_tools
from tests.stress import command
from tests.stress.run import LiveRun, Shape

PORTS = {"broker": 7750, "store": 7751, "weights": 7752}
FAR_ROLES = ("rollout", "rollout", "reward")
BETWEEN_S = 8.0
START_S = 60.0
FAR = "far"  # in the names of the second host's workers
AGAIN_S = 1.0  # before a process of the second host is restarted


class RemoteHost:
    """The second host's processes: each is restarted when it ends, until the host dies."""

    def __init__(self, cable: Cable, run: LiveRun) -> None:
        self._cable, self._run = cable, run
        self._loops: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for number, role in enumerate(FAR_ROLES):
            name = f"{role}-{FAR}{number}"
            worker = [sys.executable, "-m", "rhymed", "worker", "--role", role, "--name", name]
            line = shlex.join([*worker, str(self._run.where.config)])
            loop = ["sh", "-c", f"while true; do {line}; sleep {AGAIN_S}; done"]
            with (self._run.where.folder / "logs" / f"{name}.out").open("ab") as out:
                self._loops.append(
                    subprocess.Popen(
                        [*self._cable.far, *loop],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                )

    def die(self) -> None:
        """Kills all at once, as a power loss does."""
        for loop in self._loops:
            for process in [loop.pid, *_below(loop.pid)]:
                _kill(process)
        for loop in self._loops:
            loop.wait()
        self._loops = []


class Fault(NamedTuple):
    name: str
    seconds: float
    begin: Callable[[], None]
    end: Callable[[], None]


def faults(cable: Cable, far: RemoteHost) -> list[Fault]:
    return [
        Fault("cut for 1 s", 1, cable.cut, cable.repair),
        Fault("20 % of the packets lost for 20 s", 20, lambda: cable.lose(20), cable.repair),
        Fault("cut for 8 s", 8, cable.cut, cable.repair),
        Fault("host gone for 30 s, and back", 30, cable.cut, cable.repair),
        Fault("host without power for 10 s", 10, far.die, far.start),
    ]


def run(quick: bool, steps: int | None = None, out: Path | None = None) -> dict[str, Any]:
    """`steps`: enough for all faults; `out`: a folder that keeps the runs."""
    if why := missing_tools():
        raise ConfigError(why)
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-hosts-"))
    shape = Shape(steps or (40 if quick else 150), rollout=1, reward=1, settings=_net(folder))
    folder.mkdir(parents=True, exist_ok=True)
    make_keys(folder / "keys", ROLES)
    with Cable() as cable:
        calm, calm_s, _ = _whole(shape, folder, "calm", cable, lambda far: [])
        print(f"calm: {calm_s:.0f} s", flush=True)
        broken, seconds, applied = _whole(shape, folder, "broken", cable, lambda far: faults(cable, far))
    result = _judge(calm, broken) | {"calm_s": calm_s, "seconds": seconds, "faults": applied, "folder": str(folder)}
    for fault in result["wrong"][:20]:
        print(f"wrong: {fault}")
    print("passed: every sample once, and the same as in the calm run" if result["good"] else f"failed; see {folder}")
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _net(folder: Path) -> dict[str, dict[str, Any]]:
    addresses = {name: f"tcp://{NEAR}:{port}" for name, port in PORTS.items()}
    return {"net": {**addresses, "keys": str(folder.resolve() / "keys")}}


def _whole(
    shape: Shape, folder: Path, name: str, cable: Cable, planned: Callable[[RemoteHost], list[Fault]]
) -> tuple[LiveRun, float, list[str]]:
    with LiveRun(shape.write(folder, name), cable.near) as live, _far(cable, live) as far:
        started, applied = time.monotonic(), []
        for fault in planned(far):
            if live.wait(BETWEEN_S) is not None:
                break
            print(f"{time.monotonic() - started:6.1f} s  {fault.name}", flush=True)
            applied.append(fault.name)
            fault.begin()
            live.wait(fault.seconds)
            fault.end()
        missed = len(planned(far)) - len(applied)
        status = live.wait()
        if status != 0:
            raise ConfigError(f"the {name} run ended with status {status}:\n{live.tail()}")
        if missed:
            print(f"the run was over before {missed} of the faults: give it more --steps", flush=True)
        return live, time.monotonic() - started, applied


@contextmanager
def _far(cable: Cable, live: LiveRun) -> Iterator[RemoteHost]:
    deadline = time.monotonic() + START_S
    while not (live.where.folder / "logs").is_dir():
        if time.monotonic() > deadline or live.status is not None:
            raise ConfigError(f"the run did not begin:\n{live.tail()}")
        time.sleep(0.1)
    far = RemoteHost(cable, live)
    far.start()
    try:
        yield far
    finally:
        far.die()


def _judge(calm: LiveRun, broken: LiveRun) -> dict[str, Any]:
    with open_folder(calm.where.folder) as one, open_folder(broken.where.folder) as other:
        peace, war = audit(one), audit(other)
    both = compare_runs(calm.where.folder, broken.where.folder)
    wrong = [f"calm: {fault}" for fault in peace.wrong] + [f"broken: {fault}" for fault in war.wrong + both.wrong]
    wrong += [f"{war.dropped} samples were dropped"] if war.dropped else []
    joins = {run.config.run.name: _joins(run) for run in (calm, broken)}
    wrong += [
        f"{name}: only {count} joins from the second host" for name, count in joins.items() if count < len(FAR_ROLES)
    ]
    return {
        "steps": war.steps,
        "samples": war.trained,
        "dropped": war.dropped,
        "joins": joins,
        "audit": both.weights,
        "wrong": wrong,
        "good": not wrong,
    }


def _joins(run: LiveRun) -> int:
    """How often processes of the second host joined the run."""
    log = (run.where.folder / "logs" / "broker.log").read_text()
    return sum(f"-{FAR}" in line and " joined " in line for line in log.splitlines())


def _below(pid: int) -> list[int]:
    import psutil

    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> int:
    parser = command.parser("tests.hostile.hosts", "train over two hosts whose network fails; needs root, ip and nft")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
