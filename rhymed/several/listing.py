"""The runs of a folder as rows. Brokers of living runs are asked for what files lack, with a short deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhymed.config.load import load_run
from rhymed.errors import ConfigError, RhymedError
from rhymed.messages import Queues
from rhymed.run import folder as folders
from rhymed.run.client import ask
from rhymed.run.layout import RunLayout, layout_of
from rhymed.several import manifest
from rhymed.several.condition import ALIVE
from rhymed.several.find import Damaged, Found, find
from rhymed.several.rows import Files, RunRow, read_files, row_of
from rhymed.wire.addresses import is_removed
from rhymed.wire.sockets import Client
from rhymed_store.shards.folders import any_open

DEADLINE_S = 1.5


@dataclass(frozen=True)
class Listing:
    folder: Path
    runs: list[RunRow]
    damaged: list[Damaged]
    sweep: bool = False  # the folder is that of a sweep: its runs are in the sweep's order

    def json(self) -> dict[str, Any]:
        damaged = [{"folder": str(one.folder), "why": one.why} for one in self.damaged]
        return {"folder": str(self.folder), "runs": [row.json() for row in self.runs], "damaged": damaged}


@dataclass
class Lister:
    """Reads a folder again and again; files that grow are continued."""

    place: Path
    _read: dict[Path, tuple[list[int], Files]] = field(default_factory=dict)  # with the sizes and times of its files

    def read(self, answers: Mapping[Path, Queues | None] | None = None) -> Listing:
        """`answers`: snapshots of living runs by their folders. Blocking. Raises `ConfigError`."""
        found, damaged = find(self.place)
        plan = self._plan(found, damaged)
        rows = [self._row(one, (answers or {}).get(one.folder), plan.get(one.folder)) for one in found]
        there = {one.folder for one in found}
        rows += [_waiting(self.place, folder, planned) for folder, planned in plan.items() if folder not in there]
        own = (self.place / manifest.FILE).exists()
        return Listing(self.place, _in_plan(rows, plan) if own else ordered(rows), damaged, own)

    def _row(self, one: Found, queues: Queues | None, planned: manifest.Planned | None) -> RunRow:
        return row_of(one, self.files(one.folder), queues, planned.settings if planned else None)

    def files(self, run: Path) -> Files:
        """What the files of this run contain; read again only if they have changed. Blocking."""
        now, (before, files) = _stamp(run), self._read.get(run, ([], None))
        if files is None or now != before:
            files = read_files(run, files.progress if files else None)
            self._read[run] = now, files
        return files

    def _plan(self, found: Sequence[Found], damaged: list[Damaged]) -> dict[Path, manifest.Planned]:
        """Of every sweep here, by the folder of the run, in the sweep's order."""
        plan: dict[Path, manifest.Planned] = {}
        for folder in dict.fromkeys([self.place, *sorted(file.parent for file in self.place.glob("*/sweep.json"))]):
            try:
                if (sweep := manifest.read(folder)) is not None:
                    plan |= {folder / one.name: one for one in sweep.runs}
            except ConfigError as error:
                damaged.append(Damaged(folder, str(error)))
        return plan


def _stamp(run: Path) -> list[int]:
    stamp = []
    for name in ("metrics.jsonl", "timeline.jsonl"):
        with contextlib.suppress(OSError):
            status = (run / name).stat()
            stamp += [status.st_size, status.st_mtime_ns, status.st_ino]
    return stamp


def listing(place: Path) -> Listing:
    """With the answers of the brokers. Blocking. Raises `ConfigError`."""
    found, _ = find(place)
    return Lister(place).read(asyncio.run(answers_of([one.folder for one in found])))


async def answers_of(runs: Sequence[Path]) -> dict[Path, Queues | None]:
    """Snapshots of those that are alive on this machine, asked all at once."""
    places = {folder: where for folder in runs if (where := await asyncio.to_thread(_alive, folder))}
    answers = await asyncio.gather(*(_answer(where) for where in places.values()))
    return dict(zip(places, answers, strict=True))


def _alive(folder: Path) -> RunLayout | None:
    """Where to ask; None: it is not alive, or its configuration is of another release or place."""
    with contextlib.suppress(ConfigError, OSError):
        if folders.holder(folder) is not None or any_open(folder / "store"):
            where = layout_of(load_run(folder))
            return where if where.folder == folder.resolve() and not is_removed(where.broker) else None
    return None


async def _answer(where: RunLayout) -> Queues | None:
    client = None
    try:
        client = Client(where.broker, peer="broker", keys=where.keys("viewer"), resend=False)
        queues = await ask(client, deadline_s=DEADLINE_S)
    except RhymedError:
        return None
    finally:
        if client is not None:
            client.close()
    return queues if queues.run == where.folder.name else None


def ordered(rows: Sequence[RunRow]) -> list[RunRow]:
    """Living ones first, then the newest; those that never started last."""

    def key(row: RunRow) -> tuple[bool, bool, float, str]:
        return row.state not in ALIVE, row.state == "waiting", -(row.started or 0.0), row.name

    return sorted(rows, key=key)


def _in_plan(rows: Sequence[RunRow], plan: Mapping[Path, manifest.Planned]) -> list[RunRow]:
    order = {str(folder): place for place, folder in enumerate(plan)}
    return sorted(rows, key=lambda row: (order.get(row.folder, len(order)), row.name))


def _waiting(place: Path, folder: Path, planned: manifest.Planned) -> RunRow:
    return RunRow(
        name=str(folder.relative_to(place)),
        folder=str(folder),
        state="failed" if planned.refused else "waiting",
        why=planned.refused,
        settings=dict(planned.settings),
    )
