"""Reads everything for the report from a run's folder. Any file may be missing or damaged.

What cannot be read is left out and listed in `missing`, one sentence each. Reads only; draws nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rhymed.errors import RhymedError, UnknownSample
from rhymed.history.folder import RunFolder, find
from rhymed.messages import SampleId
from rhymed.report.highlights import Pick, select
from rhymed.run import folder as runs
from rhymed.run import provenance, timeline
from rhymed.run.layout import RunLayout
from rhymed.run.state import state_of
from rhymed.run.timeline import Timeline
from rhymed.run.totals import Row
from rhymed.text import counted, step_phrase
from rhymed_store.database.reads import SampleRecord
from rhymed_store.inspect.browse import Totals
from rhymed_store.inspect.columns import SampleColumns
from rhymed_store.shards.browse import StoreReader

MOST_SAMPLES = 1_000_000  # in the store; reading more would take many seconds
INCIDENTS = ("lost", "rests", "left")


@dataclass
class Facts:
    folder: Path
    state: str  # finished, running, stopped
    config: dict[str, Any]
    rows: list[Row]
    evaluations: list[Row]
    elapsed_s: float
    timeline: Timeline
    starts: list[provenance.Start]
    store: Totals | None = None
    samples: list[tuple[Pick, dict[str, Any]]] = field(default_factory=list)  # pages of rhymed.dashboard.data.samples
    textless: str = ""  # why responses are token ids instead of text
    missing: list[str] = field(default_factory=list)

    @property
    def trained(self) -> set[int]:
        """Steps (from 0) that the timeline records as trained."""
        return {event.step for event in self.timeline.events if event.event == "trained" and event.step is not None}

    @property
    def name(self) -> str:
        section = self.config.get("run")
        return str((section.get("name") if isinstance(section, dict) else None) or self.folder.resolve().name)


def gather(folder: Path, *, ended: bool = False) -> Facts:
    """`ended`: the caller knows that the run is over although its folder is still locked."""
    # Enough to read the folder; its configuration may be unreadable.
    where = RunLayout(folder=folder, broker="", store="", weights="", sockets=folder)
    facts = Facts(
        folder=folder,
        state="stopped",
        config=_config(folder),
        rows=runs.read_metrics(where),
        evaluations=runs.read_evaluations(where),
        elapsed_s=0.0,
        timeline=timeline.read(folder),
        starts=provenance.read(folder),
    )
    facts.state = state_of(folder, facts.timeline, ended=ended)
    facts.elapsed_s = _elapsed(facts)
    if not facts.config:
        facts.missing.append("There is no config.json that can be read.")
    facts.missing += _without_numbers(facts)
    _look_into_store(facts)
    return facts


def _config(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text())
        return config if isinstance(config, dict) else {}
    return {}


def _without_numbers(facts: Facts) -> Iterator[str]:
    """Trained steps without metrics. In a living run the newest step's may not be written yet."""
    lines = {int(row["step"]) for row in facts.rows}
    lost = sorted(facts.trained - lines)
    if facts.state == "running":
        lost = [step for step in lost if step != max(facts.trained)]
    if lost and not lines:
        there = (facts.folder / "metrics.jsonl").exists()
        file = "metrics.jsonl has no steps" if there else "There is no metrics.jsonl"
        yield f"{file}: the timeline has {counted(len(lost), 'trained step')}; curves and sums are missing."
    elif lost:
        yield (
            f"metrics.jsonl lacks {counted(len(lost), 'step')} that the timeline has as trained, starting with"
            f" {step_phrase(lost[0])}: curves and sums cover the other steps."
        )


def _elapsed(facts: Facts) -> float:
    """Seconds of all parts of the run, as far as they are known."""
    summed, until = 0.0, 0.0  # of the parts that ended, and when the last one did
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        file = facts.folder / "summary.json"
        summed, until = float(json.loads(file.read_text())["elapsed_s"]), file.stat().st_mtime
    if summed or facts.timeline.spans:
        return summed + worked_s(facts.timeline, until)
    return float(sum(row.get("timing_s/step") or 0.0 for row in facts.rows))


def worked_s(line: Timeline, since: float) -> float:
    """Seconds covered by spans after `since`, without the pauses between the parts of a resumed run."""
    times = sorted({round(span.t) for span in line.spans if span.t > since})
    return float(sum(after - before for before, after in pairwise(times) if after - before < 60))


def _look_into_store(facts: Facts) -> None:
    try:
        folder, store = find(facts.folder)
        with StoreReader(store) as reader:
            run = RunFolder(folder, reader.browse)
            facts.store = run.browse.totals()
            if facts.store.samples > MOST_SAMPLES:
                facts.missing.append(
                    f"The store has {facts.store.samples:,} samples: too many to select from within seconds."
                    f" `rhymed history show --run {facts.folder}` shows them prompt by prompt."
                )
            elif facts.store.samples:
                facts.samples = list(_samples(run, run.browse.columns(), facts.missing))
            if facts.samples and run.missing:
                facts.textless = run.missing
    except RhymedError as error:
        facts.missing.append(f"The store cannot be read: {error}.")


def _samples(run: RunFolder, columns: SampleColumns, missing: list[str]) -> Iterator[tuple[Pick, dict[str, Any]]]:
    from rhymed.dashboard.data.samples import sample_page

    if columns.damaged:
        missing.append(f"{columns.damaged:,} damaged samples are left out; see `rhymed history verify`.")
    ids = Ids(run)

    def share(pick: Pick) -> float | None:
        drafted = ids.drafted(pick)
        return None if drafted is None or not len(drafted) else float(drafted.mean())

    for pick in select(columns, share):
        try:
            yield pick, sample_page(run, ids.of(pick))
        except RhymedError as error:
            missing.append(f"A sample of {step_phrase(pick.step)}, prompt {pick.prompt}, cannot be read: {error}.")


class Ids:
    """Finds the samples behind rows of the columns; the headers of each prompt are read once."""

    def __init__(self, run: RunFolder) -> None:
        self._browse = run.browse
        self._read: dict[str, list[SampleRecord]] = {}

    def of(self, pick: Pick) -> SampleId:
        return self._found(pick).sample

    def drafted(self, pick: Pick) -> Any:
        """For each token, whether it was an accepted draft. None if unknown."""
        try:
            return self._browse.drafted([self._found(pick)])[0]
        except RhymedError:
            return None  # damaged: reported where the sample is shown

    def _found(self, pick: Pick) -> SampleRecord:
        """Raises `UnknownSample` if the store has changed since the columns were read."""
        if pick.prompt not in self._read:
            self._read[pick.prompt] = self._browse.headers(pick.prompt)
        own = [row for row in self._read[pick.prompt] if row.sample.step == pick.step]
        if pick.nth >= len(own):
            raise UnknownSample("it no longer exists")
        return own[pick.nth]
