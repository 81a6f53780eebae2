"""Power cuts of recorded sessions: of a store under load, and of a process that saves checkpoints.

A session is recorded once and cut at many random moments. What was acknowledged by then must be on every disk that
the cut can leave: samples bit for bit, and the checkpoint that was reported as the newest, or a newer one.
"""

from __future__ import annotations

import bisect
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from rhymed.core.config import Config
from rhymed.core.errors import RhymedError, StoreError
from rhymed.core.run import checkpoint
from rhymed_store.database.transactions import FILE, Database
from tests.hostile.crash import Fate, StoreHistory, Tally, zygote
from tests.hostile.disk import interposed
from tests.hostile.disk.record import Disk, records

MAP_GIB = 0.25
START, START_SHARE = 60, 0.2  # this share of the cuts is among the first records: while names are made
VERIFY = 5  # every such cut's store is also verified, which reads what no sample refers to
LIVES = 3  # of a store in one session: it is killed, and its successor continues
CHECKPOINTS = 12  # that one session saves
KEEP = 2

SAVER = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from rhymed.core.run import checkpoint
folder, steps, keep = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for step in range(1, steps + 1):
    def write(part):
        (part / "model").mkdir()
        values = np.random.default_rng(step).random(20_000, np.float32)
        save_file({"weights": values}, part / "model" / "model.safetensors")
        (part / "state.json").write_text(f'{{"step": {step}}}')
    checkpoint.save(folder, step, write, keep, "0123456789abcdef")
    print(step, flush=True)
"""


@dataclass
class Result:
    cuts: int = 0
    writes: int = 0  # recorded
    flushes: int = 0
    acknowledged: int = 0  # operations, or checkpoints, over all cuts
    compared: int = 0  # samples read back, or checkpoints read, over all cuts
    lost: list[str] = field(default_factory=list)

    def __iadd__(self, other: Result) -> Result:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self

    def numbers(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "lost"}

    def __str__(self) -> str:
        return ", ".join(f"{value:,} {name}" for name, value in self.numbers().items()) + f", {len(self.lost)} lost"


class RecordedHistory(StoreHistory):
    """Remembers when each operation was acknowledged: the size of the record by then."""

    EARLY, LOAD_S = 0.0, 1.0

    def __init__(self, *arguments: Any, log: Path) -> None:
        super().__init__(*arguments)
        self._log = log
        self._acknowledged: list[tuple[int, Fate, int, int]] = []  # when; of which tokens and stage

    def acknowledged(self, fate: Fate | None = None) -> None:
        super().acknowledged(fate)
        if fate is not None:
            self._acknowledged.append((self._log.stat().st_size, fate, fate.parts[0], fate.stage[0]))

    def at(self, when: int) -> int:
        """Go back to what was acknowledged by then; what was asked stays. Returns the number of operations."""
        for fate in self._fates:
            fate.parts, fate.stage = (0, fate.parts[1]), (0, fate.stage[1])
        count = bisect.bisect_right(self._acknowledged, when, key=lambda one: one[0])
        for _, fate, tokens, stage in self._acknowledged[:count]:
            fate.parts, fate.stage = (tokens, fate.parts[1]), (stage, fate.stage[1])
        return count


def moments(root: Path, log: Path, cuts: int, rng: random.Random) -> Iterator[tuple[int, Disk]]:
    """The disk at random moments of the record: right after a record, or within a flush."""
    ends = [record.end for record in records(log)]
    early = round(cuts * START_SHARE)
    wanted = sorted([*rng.choices(ends[:START], k=early), *rng.choices(ends, k=cuts - early)])
    disk, at = Disk(root), 0
    for record in records(log):
        disk.apply(record)
        while at < len(wanted) and wanted[at] == record.end:
            yield record.end, disk
            at += 1


def cut_store(folder: Path, library: Path, cuts: int, seed: int) -> Result:
    """`folder`: an empty one, for this alone."""
    rng, tally, result = random.Random(seed), Tally(), Result()
    root, log = folder / "disk", folder / "record"
    root.mkdir()
    store = {"map_gib": MAP_GIB, "durability": "sync"}
    config = Config.model_validate({"run": {"folder": str(folder), "name": root.name}, "store": store})
    with zygote(folder / "stores.log", interposed.environment(library, root, log=log)) as stores:
        history = RecordedHistory(config, stores, rng, tally, log=log)
        uvloop.run(history.play(LIVES))
    result.lost += tally.lost
    tally.lost.clear()
    before = tally.compared
    for when, disk in moments(root, log, cuts, rng):
        result.acknowledged += history.at(when)
        problems = of_cut(folder / f"cut-{result.cuts}", disk, rng, _look(history, tally, result.cuts))
        result.lost += [f"store, seed {seed}, at byte {when} of the record: {one}" for one in problems]
        result.cuts += 1
        result.writes, result.flushes = disk.writes, disk.flushes
    result.compared = tally.compared - before
    return result


def _look(history: RecordedHistory, tally: Tally, number: int) -> Callable[[Path], list[str]]:
    """A store opens it, as after a reboot; then everything is compared."""

    def look(there: Path) -> list[str]:
        tally.lost.clear()
        database = there / "store"
        if (database / FILE).exists():
            try:
                Database(database, int(MAP_GIB * 2**30)).close()
            except RhymedError as error:
                return [f"the store does not open: {error}"]
        history.compare(database, verified=number % VERIFY == 0)
        return list(tally.lost)

    return look


def cut_checkpoints(folder: Path, library: Path, cuts: int, seed: int) -> Result:
    """`folder`: an empty one, for this alone."""
    rng, result = random.Random(seed), Result()
    root, log = folder / "disk", folder / "record"
    root.mkdir()
    saved = _save(root / "checkpoints", interposed.environment(library, root, log=log), log)
    for when, disk in moments(root, log, cuts, rng):
        newest = bisect.bisect_right(saved, when)  # the steps count from 1
        problems = of_cut(folder / f"cut-{result.cuts}", disk, rng, partial(_found, least=newest))
        result.lost += [f"checkpoints, seed {seed}, at byte {when} of the record: {one}" for one in problems]
        result.cuts += 1
        result.acknowledged += newest
        result.compared += bool(newest)
        result.writes, result.flushes = disk.writes, disk.flushes
    return result


def _save(folder: Path, environment: dict[str, str], log: Path) -> list[int]:
    """When each checkpoint was reported."""
    command = [sys.executable, "-c", SAVER, str(folder), str(CHECKPOINTS), str(KEEP)]
    reported = []
    with subprocess.Popen(command, env=_inherited(environment), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it was started with a pipe"
        for _ in process.stdout:
            reported.append(log.stat().st_size)
    if len(reported) != CHECKPOINTS:
        raise StoreError(f"the process that saves checkpoints ended with status {process.returncode}")
    return reported


def _inherited(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **environment}


def _found(there: Path, *, least: int) -> list[str]:
    try:
        found = checkpoint.resume(there / "checkpoints", ["0123456789abcdef"])
    except RhymedError as error:
        return [f"checkpoint {least} was reported: {error}"] if least else []
    step = found.step if found else 0
    return [] if step >= least else [f"checkpoint {least} was reported, {step} is the newest that is found"]


def of_cut(target: Path, disk: Disk, rng: random.Random, look: Callable[[Path], list[str]]) -> list[str]:
    """Of one disk after a cut; it is removed if nothing is wrong with it."""
    disk.cut(target, rng)
    problems = look(target)
    if not problems:
        shutil.rmtree(target)
    return problems
