"""`python -m tests.hostile.relays.run`: a run whose weights reach its hosts through each other, while relays die.

Store, broker, trainer and reward worker are on one host, every rollout worker is on a host of its own (network
namespaces, see `benchmarks.hosts.network`) with a slow line, so that weights come from the trainer and from other
workers. One worker is killed in the middle of a transfer and comes back, another one is killed and does not. The same
run is made with one worker on the trainer's host, which reads the trainer's file. Tokens depend on every bit of the
weights (`worker`). It passes when `rhymed history compare` finds no difference, although relays died, and the
trainer's host sent much less than a copy to each of the others.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.hosts.network import NETWORK, Hosts, missing_tools
from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from tests.stress import command
from tests.stress.run import LiveRun, Shape, with_model

PORTS = {"broker": 7760, "store": 7761, "weights": 7762}
GBIT = 0.2  # of each host's line: a version takes half a second, so that it can be interrupted
START_S = 120.0
LOOK_S = 0.01
BACK_S = 2.0  # after which a worker returns
MOST_SENT = 0.75  # by the trainer's host, of what all hosts got
FETCHED = re.compile(r"version (\d+): ([\d.]+) MB received in [\d.]+ s, from the trainer and (\d+) relays")


class Kill(NamedTuple):
    host: int
    fetched: int  # versions that it has completely; it is killed in the middle of the next one
    returns: bool


class Worker:
    """The rollout worker of one host."""

    def __init__(self, hosts: Hosts, number: int, live: LiveRun, file: Path) -> None:
        self._hosts, self._number, self._live, self._file = hosts, number, live, file
        self.name = f"rollout-{number}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.hostile.relays.worker", str(self._file), self.name]
        with (self._live.where.folder / "logs" / f"{self.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                [*self._hosts.command(self._number), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._hosts.environment(),
            )

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def fetches(self) -> list[tuple[int, float, int]]:
        """(version, MB, relays) of each that is complete."""
        log = self._live.where.log(self.name)
        text = log.read_text(errors="replace") if log.exists() else ""
        return [(int(a), float(b), int(c)) for a, b, c in FETCHED.findall(text)]

    @property
    def fetching(self) -> bool:
        """A part of a file is here. The host's memory is seen through the process."""
        assert self.process is not None, "it was started"
        memory = self._hosts.environment()["RHYMED_SHARED_MEMORY"]
        with contextlib.suppress(OSError):
            parts = Path(f"/proc/{self.process.pid}/root{memory}").glob("rhymed-weights-*/*.part")
            return any(part.stat().st_blocks for part in parts)
        return False


class Killer(threading.Thread):
    """Kills one worker in the middle of a transfer."""

    def __init__(self, worker: Worker, kill: Kill, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._worker, self._kill, self._over = worker, kill, over
        self.done = False

    def run(self) -> None:
        while len(self._worker.fetches()) < self._kill.fetched or not self._worker.fetching:
            if self._over.wait(LOOK_S):
                return
        self._worker.end()
        self.done = True
        print(f"{self._worker.name} killed while it fetched version {self._kill.fetched}", flush=True)
        if self._kill.returns and not self._over.wait(BACK_S):
            self._worker.start()


def run(quick: bool, hosts: int | None = None, steps: int | None = None, out: Path | None = None) -> dict[str, Any]:
    """`hosts`: rollout workers, at least three. `out`: a folder that keeps the runs."""
    if why := missing_tools(True):
        raise ConfigError(why)
    if (count := hosts or (3 if quick else 5)) < 3:
        raise ConfigError("--hosts: at least 3, since two of them die")
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-relays-"))
    folder.mkdir(parents=True, exist_ok=True)
    make_keys(folder / "keys", ROLES)
    shape = Shape(steps or (4 if quick else 12), rollout=0, reward=1, settings=_settings(folder.resolve()))
    plain, _ = _whole(shape, folder, "plain", 1, [])
    first, second = Kill(1, 1, returns=True), Kill(2, 2, returns=False)
    relayed, facts = _whole(shape, folder, "relays", count, [first, second])
    result = _judge(plain, relayed, facts, count) | {"folder": str(folder)}
    for fault in result["wrong"]:
        print(f"wrong: {fault}")
    print("passed: the same tokens and weights" if result["good"] else f"failed; see {folder}")
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _settings(folder: Path) -> dict[str, dict[str, Any]]:
    settings = with_model(folder, 1, hidden=256, layers=4)  # 11 MB of float32: slices enough for relays
    addresses = {name: f"tcp://{NETWORK}.1:{port}" for name, port in PORTS.items()}
    return {**settings, "net": {**addresses, "keys": str(folder / "keys")}}


def _whole(
    shape: Shape, folder: Path, name: str, count: int, kills: Sequence[Kill]
) -> tuple[LiveRun, dict[str, Any]]:
    """With a single worker, it is on the trainer's host."""
    file, started = shape.write(folder, name), time.monotonic()
    with Hosts(count + 1, GBIT) as hosts, LiveRun(file, hosts.command(0)) as live:
        where = [0] if count == 1 else list(range(1, count + 1))
        workers = {number: Worker(hosts, number, live, file) for number in where}
        with _at_work(workers.values(), live), _killers(workers, kills) as killers:
            status, sent = live.wait(), _sent(hosts)
        if status != 0:
            raise ConfigError(f"the {name} run ended with status {status}:\n{live.tail()}")
    fetches = [fetch for worker in workers.values() for fetch in worker.fetches()]
    print(f"{name}: {time.monotonic() - started:.0f} s, {len(fetches)} versions fetched", flush=True)
    return live, {"fetches": fetches, "killed": sum(killer.done for killer in killers), "sent": sent}


def _sent(hosts: Hosts) -> int:
    """Bytes over the line of the trainer's host."""
    command = [*hosts.command(0), "cat", "/sys/class/net/line/statistics/tx_bytes"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@contextlib.contextmanager
def _at_work(workers: Any, live: LiveRun) -> Iterator[None]:
    deadline = time.monotonic() + START_S
    while not (live.where.folder / "logs").is_dir():
        if time.monotonic() > deadline or live.status is not None:
            raise ConfigError(f"the run did not begin:\n{live.tail()}")
        time.sleep(0.1)
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.end()


@contextlib.contextmanager
def _killers(workers: dict[int, Worker], kills: Sequence[Kill]) -> Iterator[list[Killer]]:
    over = threading.Event()
    killers = [Killer(workers[kill.host], kill, over) for kill in kills]
    for killer in killers:
        killer.start()
    try:
        yield killers
    finally:
        over.set()
        for killer in killers:
            killer.join()


def _judge(plain: LiveRun, relayed: LiveRun, facts: dict[str, Any], count: int) -> dict[str, Any]:
    with open_folder(relayed.where.folder) as opened:
        checked = audit(opened)
    both = compare_runs(plain.where.folder, relayed.where.folder)
    line = [sys.executable, "-m", "rhymed", "history", "compare"]
    samples = subprocess.run(
        [*line, str(plain.where.folder), str(relayed.where.folder)], capture_output=True, text=True
    )
    print(samples.stdout, flush=True)
    fetches = facts["fetches"]
    share = facts["sent"] / 1e6 / max(1.0, sum(size for _, size, _ in fetches))
    wrong = [f"relays: {fault}" for fault in checked.wrong] + both.wrong
    wrong += [] if samples.returncode == 0 else ["`rhymed history compare` finds other samples"]
    wrong += [] if facts["killed"] == 2 else [f"{facts['killed']} of 2 relays were killed in a transfer"]
    wrong += [] if any(relays for *_, relays in fetches) else ["no slice came from a relay"]
    wrong += [] if share < MOST_SENT else [f"the trainer's host sent {share:.2f} of all copies"]
    return {
        "hosts": count,
        "steps": checked.steps,
        "samples": checked.trained,
        "weights": both.weights,
        "fetched": len(fetches),
        "with_relays": sum(relays > 0 for *_, relays in fetches),
        "sent_by_trainer": round(share, 3),
        "killed": facts["killed"],
        "wrong": wrong,
        "good": not wrong,
    }


def main() -> int:
    parser = command.parser(
        "tests.hostile.relays.run", "train on hosts that pass weights on and die; needs root, ip, tc"
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="rollout workers, each on a host of its own")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
