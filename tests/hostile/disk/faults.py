"""A run of the trace engine on a disk that fails: writes, flushes, allocations and new names of everything it stores.

Faults come in storms with calm between them; a run that ends is resumed. It may end with a sentence, never with a
traceback, and after the last storm it must end as the same run without faults does: the same samples in the same
steps, each once, and the same weights, bit for bit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from tests.hostile.disk import interposed
from tests.hostile.disk.interposed import Faults
from tests.hostile.remove import Places, samples, trained
from tests.stress.run import LiveRun, Shape

PLACES = ("store/", "checkpoints/", "logs/", ".safetensors", "")  # ".safetensors": published weights; "": all
RATES = (50_000, 200_000, 1_000_000)  # of a million system calls
STORM_S, CALM_S = (1.0, 4.0), (1.0, 3.0)
FAULT_S = 15.0  # a storm lasts until there was a fault, at most this much longer
END_S = 300.0
SMALL = (
    "rollout.max_response_length=300",
    "trace.mean_length=30",
    "trainer.checkpoint_every=3",
    "rollout.save_every_s=0.5",
)


@dataclass
class Storms:
    count: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # the sentences with which it ended
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def storms_of_run(
    folder: Path, library: Path, storms: int, steps: int, seed: int, rates: Sequence[int] = RATES
) -> Storms:
    """`folder`: an empty one, for this alone. Runs twice: without faults, and with them. `rates`: of a million system
    calls that fail, one for each storm."""
    shape = Shape(steps, rollout=2, reward=1, override=SMALL)
    with LiveRun(shape.write(folder, "calm")) as calm:
        if calm.wait(END_S) != 0:
            raise ConfigError(f"the run without faults failed, so there is nothing to compare with:\n{calm.tail()}")
    faults, found, began = Faults(folder / "faults", seed), Storms(), time.monotonic()
    file = shape.write(folder, "storms")
    run = LiveRun(file)
    environment = interposed.environment(library, run.where.folder, Places(run).shm, faults=faults.file)
    run = LiveRun(file, prefix=["env", *(f"{name}={value}" for name, value in environment.items())])
    try:
        run.start()
        _until_it_trains(run)  # without a folder there is nothing to resume
        _storms(run, faults, found, storms, steps, random.Random(seed), rates)
        _finish(run, found)
    finally:
        faults.set(0)
        run.interrupt()
    found.faults, found.seconds = faults.counts(), time.monotonic() - began
    if not found.wrong:
        _compare(calm, run, found)
    return found


def _storms(
    run: LiveRun, faults: Faults, found: Storms, storms: int, steps: int, rng: random.Random, rates: Sequence[int]
) -> None:
    while found.count < storms and trained(run) < steps:
        before = samples(run)
        faults.set(0)
        _sleep(run, rng.uniform(*CALM_S))
        if run.status is not None:
            _note_end(run, found)
            run.start(resume=True)
            _until_it_trains(run)
        faults.set(rng.choice(rates), rng.choice(PLACES))
        found.count += 1
        earlier = faults.counts()
        _sleep(run, rng.uniform(*STORM_S))
        until = time.monotonic() + FAULT_S
        while faults.counts() == earlier and time.monotonic() < until and run.status is None:
            time.sleep(0.05)
        faults.set(0)
        if (after := samples(run)) < before:
            found.wrong.append(f"storm {found.count}: {before - after} acknowledged samples are lost")


def _sleep(run: LiveRun, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and run.status is None:
        time.sleep(0.05)


def _until_it_trains(run: LiveRun) -> None:
    """A storm before that would hit what the one before has hit."""
    before, until = trained(run), time.monotonic() + END_S
    while run.status is None and trained(run) <= before and time.monotonic() < until:
        time.sleep(0.1)


def _note_end(run: LiveRun, found: Storms) -> None:
    output = run.output.read_text(errors="replace")
    sentence = output.rpartition("run failed: ")[2].partition("\n")[0] if "run failed: " in output else ""
    found.ends.append(sentence or f"status {run.status}")
    if "Traceback" in output or not (sentence or run.status == 0):
        found.wrong.append(f"storm {found.count}: status {run.status}, and its output ends with: {run.tail(20)}")
    run.output.rename(run.output.with_suffix(f".out-{len(found.ends)}"))


def _finish(run: LiveRun, found: Storms) -> None:
    """Without faults: it ends, or it had ended and is resumed."""
    status = run.wait(END_S)
    if status not in (None, 0):
        _note_end(run, found)
        run.start(resume=True)
        status = run.wait(END_S)
    if status != 0:
        found.wrong.append(f"after the last storm it did not end well: status {status}\n{run.tail(20)}")


def _compare(calm: LiveRun, run: LiveRun, found: Storms) -> None:
    try:
        with open_folder(run.where.folder) as opened:
            report = audit(opened)
    except RhymedError as error:
        found.wrong.append(f"its folder cannot be audited: {error}")
        return
    found.wrong += report.wrong + compare_runs(calm.where.folder, run.where.folder).wrong
    found.wrong += [f"{report.dropped} samples were dropped"] if report.dropped else []
