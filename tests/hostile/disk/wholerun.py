"""Power cuts of a whole run: every process of a run of the trace engine is recorded, until it has ended.

After a cut the run's two halves must belong together, so that it can be resumed; the newest checkpoint that the
trainer's log reports must be found, and the store must have the samples of every step that the metrics report. Some
of the cuts are resumed to their end and compared with the run that was not cut.
"""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.run.layout import RunLayout
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from rhymed.start.launch import resumable
from tests.hostile.disk import interposed
from tests.hostile.disk.cuts import Result, moments, of_cut
from tests.hostile.disk.faults import END_S, SMALL
from tests.hostile.disk.record import Record, records
from tests.stress.run import LiveRun, Shape

STEPS = 12
SAVED = re.compile(rb"checkpoint \S+/step-(\d+) in")
TRAINED = re.compile(rb'"step": ?(\d+)')


def cut_run(folder: Path, library: Path, cuts: int, seed: int, resumes: int = 2) -> Result:
    """`folder`: an empty one, for this alone."""
    rng, result = random.Random(seed), Result()
    root, log = folder / "disk", folder / "record"
    root.mkdir()
    file = Shape(STEPS, rollout=2, reward=1, override=SMALL).write(root, "run")
    environment = interposed.environment(library, root, log=log)
    with LiveRun(file, prefix=["env", *(f"{name}={value}" for name, value in environment.items())]) as run:
        if run.wait(END_S) != 0:
            raise ConfigError(f"the run that is recorded failed:\n{run.tail()}")
    reported = _reported(log)
    chosen = set(rng.sample(range(cuts), min(resumes, cuts)))
    for number, (when, disk) in enumerate(moments(root, log, cuts, rng)):
        saved, trained = (max((step for at, step in steps if at <= when), default=0) for steps in reported)
        look = partial(_problems, layout=run.where, saved=saved, trained=trained)
        problems = of_cut(folder / f"cut-{number}", disk, rng, look)
        if number in chosen:
            disk.cut(folder / f"resumed-{number}", rng)
        result.lost += [f"run, seed {seed}, at byte {when} of the record: {one}" for one in problems]
        result.cuts += 1
        result.acknowledged += saved + trained
        result.compared += bool(trained)
        result.writes, result.flushes = disk.writes, disk.flushes
    whole = run.where.folder.rename(folder / "whole")
    for number in sorted(chosen):
        result.lost += [f"run, seed {seed}, cut {number}: {one}" for one in _resume(folder, number, run, whole)]
    return result


def _reported(log: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """When how many steps were reported: as in a durable checkpoint, and as trained."""
    saved, trained = [], []
    for record in records(log):
        if _is_line_of(record, "logs/trainer.log"):
            saved += [(record.end, int(step)) for step in SAVED.findall(record.data)]
        if _is_line_of(record, "metrics.jsonl"):
            trained += [(record.end, int(step) + 1) for step in TRAINED.findall(record.data)]
    if not saved or not trained:
        raise ConfigError("the record has no line of a checkpoint or of the metrics")
    return saved, trained


def _is_line_of(record: Record, name: str) -> bool:
    return record.kind == "W" and record.path.endswith(f"/{name}")


def _problems(there: Path, *, layout: RunLayout, saved: int, trained: int) -> list[str]:
    """Of the disk after a cut."""
    where = replace(layout, folder=there / "run")
    try:
        resumable.check(where)
        found = resumable.read(where)
    except RhymedError as error:
        return [f"it cannot be resumed: {error}"]
    end = found.store.end if found.store else 0
    lost = (
        [f"the checkpoint of {saved} steps was reported, {found.steps} is the newest"] if found.steps < saved else []
    )
    return lost + ([f"{trained} steps were reported, the store ends at {end}"] if end < trained else [])


def _resume(folder: Path, number: int, run: LiveRun, whole: Path) -> list[str]:
    """To its end, in the place where it was."""
    left = folder / f"resumed-{number}" / "run"
    if not (left / "config.json").exists():
        return []  # it had not begun
    shutil.rmtree(run.where.folder, ignore_errors=True)
    left.rename(run.where.folder)
    again = LiveRun(run.output.with_suffix(".json"))
    again.start(resume=True)
    status = again.wait(END_S)
    again.interrupt()
    if status != 0:
        return [f"resumed after the cut it ended with status {status}:\n{again.tail(20)}"]
    with open_folder(run.where.folder) as opened:
        report = audit(opened)
    return report.wrong + compare_runs(whole, run.where.folder).wrong
