"""`python -m tests.stress.move`: a whole run moves to another machine after its head was lost with its disk.

The head is killed after its first backup, in the middle of a step, and its folder is deleted. "Another machine" is
another folder, which has nothing but the copy in `run.remote`. The run that continues there, a second loss included,
has to end with the samples and steps of a calm run. Also: a second head is refused while the first one is alive, and
a new run is refused where a copy of another one is. `--quick`: one loss.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.twins import compare_runs
from rhymed.core.output import show
from rhymed.core.run import lease as leases
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.place import LEASE, Place, open_place
from tests.stress.run import LiveRun, Shape

DEADLINE_S = 240.0
TRAINER = {"checkpoint_every": 3, "keep_checkpoints": 1}
MORE = 6  # steps after a loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one loss")
    losses = 1 if parser.parse_args().quick else 3
    with tempfile.TemporaryDirectory(prefix="rhymed-move-") as folder:
        moved(Path(folder), losses)
    show("every sample and step is that of the calm run")
    return 0


def moved(folder: Path, losses: int) -> None:
    (remote := folder / "shared").mkdir()
    place, url = open_place(str(remote)).child("moved"), f"file://{remote}/moved"
    lose(shape(remote).write(folder / "first", "moved"), place, 0)
    for number in range(1, losses + 1):
        steps = Backups(place).all()[-1].steps
        show(f"loss {number}: its backup is after {steps} steps, checkpoints after {checkpoints(place)}")
        there = ("--resume", url, "-o", f"run.folder={folder / f'machine-{number}'}", "--take-over")
        expect(rhymed("run", "--plain", *there), 2, "another head has this run")
        age_lease(place)
        if number < losses:
            expect(rhymed("history", "restore", url, folder / f"machine-{number}", "--take-over"), 0, "lost: samples")
            place.remove(LEASE)
            lose(folder / f"machine-{number}" / "moved" / "config.json", place, steps, resume=True)
            continue
        last = ("-o", f"trainer.steps={steps + MORE}")
        ended = expect(rhymed("run", "--plain", *there, *last), 0, f"as of {steps + MORE} trained steps")
        show(next(line for line in ended.splitlines() if line.startswith("lost: ")))
    expect(rhymed("run", "--plain", shape().write(folder / "calm", "moved"), *last), 0, "")
    last_one = folder / f"machine-{losses}" / "moved"
    show(expect(rhymed("history", "audit", last_one), 0, "").rstrip())
    both = compare_runs(last_one, folder / "calm" / "moved")
    if both.wrong:
        raise SystemExit("\n".join(both.wrong))
    show(f"{both.equal} of {both.both} steps trained on the same samples as the calm run; {both.weights}")
    expect(rhymed("run", "--plain", shape(remote).write(folder / "new", "moved")), 2, "the copy of an earlier run")


def shape(remote: Path | None = None) -> Shape:
    """With more steps than are trained until it is killed."""
    settings = {"trainer": TRAINER, "store": {"backup_every": 2}}
    settings |= {"run": {"remote": str(remote)}} if remote else {}
    return Shape(steps=1000, rollout=1, reward=1, prompts=12, settings=settings)


def lose(file: Path, place: Place, before: int, *, resume: bool = False) -> None:
    """Start a head, and kill it with its disk once its copy has a checkpoint and a backup of more steps than
    `before`."""
    run = LiveRun(file)
    run.start(resume=resume)
    try:
        until = time.monotonic() + DEADLINE_S
        while not (checkpoints(place) and any(backup.steps > before for backup in Backups(place).all())):
            if run.status is not None or time.monotonic() > until:
                raise SystemExit(f"the head wrote no backup:\n{run.tail()}")
            time.sleep(0.1)
        run.kill_all()
    finally:
        run.interrupt()
    shutil.rmtree(run.where.folder)


def checkpoints(place: Place) -> list[int]:
    return [one.step for one in Checkpoints(place).uploaded()]


def age_lease(place: Place) -> None:
    """As if its owner had not renewed it for an hour."""
    found = leases.decode(place.read(LEASE))
    assert found is not None
    place.write(LEASE, leases.encode(msgspec.structs.replace(found, at=found.at - 3600)))


def rhymed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def expect(done: subprocess.CompletedProcess[str], status: int, words: str) -> str:
    """Its output."""
    said = done.stdout + done.stderr
    if done.returncode != status or words not in said or "Traceback" in said:
        raise SystemExit(
            f"{' '.join(done.args[2:])}\nended with {done.returncode}, not {status} and {words!r}:\n{said}"
        )
    return said


if __name__ == "__main__":
    sys.exit(main())
