"""Everything that a report tells of, read from a run's folder: nothing in it has to be there, or whole.

What cannot be read is told in `missing`, a sentence each, and left out. Reads only; draws nothing.
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
from rhymed.report.highlights import Pick, telling
from rhymed.run import folder as runs
from rhymed.run import provenance, timeline
from rhymed.run.layout import RunLayout
from rhymed.run.timeline import Timeline
from rhymed.run.totals import Row
from rhymed.text import counted, step_phrase
from rhymed_store.database.reads import Found
from rhymed_store.database.tables import Reader
from rhymed_store.inspect.browse import Browse, Totals
from rhymed_store.inspect.columns import Survey, survey

MOST_SAMPLES = 1_000_000  # in the store, beyond which looking at all of them would take many seconds
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
    samples: list[tuple[Pick, dict[str, Any]]] = field(
        default_factory=list
    )  # see rhymed.dashboard.data.samples.sample_page
    textless: str = ""  # why responses are token ids
    missing: list[str] = field(default_factory=list)

    @property
    def trained(self) -> set[int]:
        """Steps, from 0, that the timeline knows to be trained."""
        return {event.step for event in self.timeline.events if event.event == "trained" and event.step is not None}

    @property
    def name(self) -> str:
        section = self.config.get("run")
        return str((section.get("name") if isinstance(section, dict) else None) or self.folder.resolve().name)


def gather(folder: Path, *, ended: bool = False) -> Facts:
    """`ended`: whoever asks knows that the run is over, though its folder is still held."""
    where = _stub(folder)
    found = Facts(
        folder=folder,
        state="stopped",
        config=_config(folder),
        rows=runs.read_metrics(where),
        evaluations=runs.read_evaluations(where),
        elapsed_s=0.0,
        timeline=timeline.read(folder),
        starts=provenance.read(folder),
    )
    found.state = _state(found, ended)
    found.elapsed_s = _elapsed(found)
    if not found.config:
        found.missing.append("There is no config.json that can be read.")
    found.missing += _without_numbers(found)
    _look_into_store(found)
    return found


def _config(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / "config.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _without_numbers(found: Facts) -> Iterator[str]:
    """Trained steps without metrics. Of a run that goes on, the newest one's may be about to be written."""
    lines = {int(row["step"]) for row in found.rows}
    lost = sorted(found.trained - lines)
    if found.state == "running":
        lost = [step for step in lost if step != max(found.trained)]
    if lost and not lines:
        there = (found.folder / "metrics.jsonl").exists()
        file = "metrics.jsonl has no line of a step" if there else "There is no metrics.jsonl"
        yield f"{file}: of {counted(len(lost), 'trained step')} the timeline tells; curves and sums are missing."
    elif lost:
        yield (
            f"metrics.jsonl lacks {counted(len(lost), 'step')} that the timeline has as trained, the first of them"
            f" {step_phrase(lost[0])}: curves and sums are of the others."
        )


def _state(found: Facts, ended: bool) -> str:
    if found.timeline.finished:
        return "finished"
    with contextlib.suppress(OSError):  # a folder that may only be read is nobody's who could tell
        if not ended and runs.holder(found.folder) is not None:
            return "running"
    return "stopped"


def _stub(folder: Path) -> RunLayout:
    """Enough to read the folder; the configuration may be of another release."""
    return RunLayout(folder=folder, broker="", store="", weights="", sockets=folder)


def _elapsed(found: Facts) -> float:
    """Seconds of all its parts, as far as they are known."""
    summed, until = 0.0, 0.0  # what the parts took that came to their end, and when the last of them did
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        file = found.folder / "summary.json"
        summed, until = float(json.loads(file.read_text())["elapsed_s"]), file.stat().st_mtime
    if summed or found.timeline.spans:
        return summed + worked_s(found.timeline, until)
    return float(sum(row.get("timing_s/step") or 0.0 for row in found.rows))


def worked_s(line: Timeline, since: float) -> float:
    """Seconds from `since` on; a run that was resumed was away in between."""
    times = sorted({round(span.t) for span in line.spans if span.t > since})
    return float(sum(after - before for before, after in pairwise(times) if after - before < 60))


def _look_into_store(found: Facts) -> None:
    try:
        folder, store = find(found.folder)
        with Reader(store) as reader:
            run = RunFolder(folder, Browse(reader))
            found.store = run.browse.totals()
            if found.store.samples > MOST_SAMPLES:
                found.missing.append(
                    f"The store has {found.store.samples:,} samples: too many to choose the most telling ones from"
                    f" in seconds. `rhymed history show --run {found.folder}` looks at them one prompt at a time."
                )
            elif found.store.samples:
                found.samples = list(_samples(run, survey(reader), found.missing))
            if found.samples and run.missing:
                found.textless = run.missing
    except RhymedError as error:
        found.missing.append(f"The store cannot be read: {error}.")


def _samples(run: RunFolder, columns: Survey, missing: list[str]) -> Iterator[tuple[Pick, dict[str, Any]]]:
    from rhymed.dashboard.data.samples import sample_page

    if columns.damaged:
        missing.append(f"{columns.damaged:,} damaged samples are left out; see `rhymed history verify`.")
    ids = Ids(run)

    def share(pick: Pick) -> float | None:
        drafted = ids.drafted(pick)
        return None if drafted is None or not len(drafted) else float(drafted.mean())

    for pick in telling(columns, share):
        try:
            yield pick, sample_page(run, ids.of(pick))
        except RhymedError as error:
            missing.append(f"A sample of {step_phrase(pick.step)}, prompt {pick.prompt}, cannot be read: {error}.")


class Ids:
    """From what a survey knows of a sample to the sample; each prompt's headers are read once."""

    def __init__(self, run: RunFolder) -> None:
        self._browse = run.browse
        self._read: dict[str, list[Found]] = {}

    def of(self, pick: Pick) -> SampleId:
        return self._found(pick).sample

    def drafted(self, pick: Pick) -> Any:
        """Of each of its tokens whether it was an accepted draft; None: not known."""
        try:
            return self._browse.drafted([self._found(pick)])[0]
        except RhymedError:
            return None  # damaged; it is told where the sample is shown

    def _found(self, pick: Pick) -> Found:
        """Raises `UnknownSample` where the store has changed since it was surveyed."""
        if pick.prompt not in self._read:
            self._read[pick.prompt] = self._browse.headers(pick.prompt)
        own = [row for row in self._read[pick.prompt] if row.sample.step == pick.step]
        if pick.nth >= len(own):
            raise UnknownSample("it is not there any more")
        return own[pick.nth]
