"""Everything that the dashboard answers from a run's folder and store, as plain data.

Works next to a living run and on whatever a run left behind: what is missing is null, empty, or a sentence. Numbers
of the living run come in with `queues`. `OpenStore` is the store. Blocking: one thread owns it
(`thread.SourceThread`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from pydantic import BaseModel

from rhymed.core.config import Config
from rhymed.core.config.inputs import HeldOut, Share
from rhymed.core.config.reward import Scorer
from rhymed.core.errors import ConfigError, MalformedMessage, StoreError
from rhymed.core.messages import Queues, SampleId
from rhymed.core.run import provenance, timeline
from rhymed.core.run.provenance import LARGEST, Start
from rhymed.core.run.timeline import Progress
from rhymed.core.secret import redacted
from rhymed.core.text import readable, size_of
from rhymed.records.history.catalog import KINDS, SORTS, Catalog
from rhymed.records.history.folder import RunFolder
from rhymed.records.logs import (
    LONGEST,
    RANKS,
    Entry,
    Filter,
    Inode,
    LastStamp,
    Log,
    inode,
    logs,
    open_log,
    parse,
)
from rhymed.show.dashboard.data import samples
from rhymed.show.dashboard.data import steps as spans
from rhymed.show.dashboard.data.samples import text_of
from rhymed.show.dashboard.data.steps import StepRows
from rhymed.show.dashboard.snapshots import plain
from rhymed_store.browse import Browse, StoreReader
from rhymed_store.codec import records

# What a reader needs to judge a run and to repeat it, as tables: what differs from the defaults, how it was started,
# and on what. Pure.
#
# A setting's key is its path (`trainer.lr`); entries of a list of tables are named by their `name`, else numbered
# from 1 (`eval.datasets[held-out].path`).

HIDDEN = ("run.name", "run.folder")
ENTRIES: dict[str, type[BaseModel]] = {"data.datasets": Share, "eval.datasets": HeldOut, "reward.scorers": Scorer}
"""List -> what its entries are, for their defaults."""
TOO_LARGE = f"unknown: larger than {size_of(LARGEST)}"

Table = tuple[str, list[tuple[str, str]]]
"""Title, and rows of a name and a value."""


def about(config: dict[str, Any], starts: Sequence[Start]) -> list[Table]:
    """Those that have rows. `config`: without secrets; empty: there is none."""
    found: list[Table] = [("Settings that differ from the defaults", changed(config))]
    if starts:
        last = starts[-1]
        found += [
            ("Started by", [(_day(one.t), f"{one.command}, in {one.folder}{_at(one)}") for one in starts]),
            ("Versions and hardware", [*last.machine.items(), *last.versions.items()]),
            ("Files at the start, SHA-256", _files(starts)),
        ]
    return [(title, rows) for title, rows in found if rows]


def changed(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Settings with other values than the defaults, the values as JSON."""
    usual = dict(_flat(Config().model_dump(mode="json")))
    return [
        (key, json.dumps(value, ensure_ascii=False))
        for key, value in _flat(config)
        if key not in HIDDEN and _differs(key, value, usual)
    ]


def _flat(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            for number, entry in enumerate(value, 1):
                name = entry.get("name") or number
                yield from _flat({key: own for key, own in entry.items() if key != "name"}, f"{path}[{name}].")
        else:
            yield path, value


def _differs(key: str, value: Any, usual: dict[str, Any]) -> bool:
    section, bracket, rest = key.partition("[")
    entry = ENTRIES.get(section) if bracket else None
    if entry is None:
        return key not in usual or usual[key] != value
    field = entry.model_fields.get(rest.rpartition("].")[2])
    return field is None or field.is_required() or value != field.get_default(call_default_factory=True)


def _files(starts: Sequence[Start]) -> list[tuple[str, str]]:
    """Once per content."""
    return [(file, sha or TOO_LARGE) for file, sha in dict.fromkeys(p for one in starts for p in one.files.items())]


def _day(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _at(start: Start) -> str:
    return f", at {start.commit[:12]}{', changed' * start.changed}" if start.commit else ""


# The newest lines of a run's logs. Blocking. Reads a bounded part at the end of each file, however large it is.

TAIL_BYTES = 1 << 20  # read at the end of a log, over its rotated files
MOST = 500  # lines in one answer
LONGEST_LINE = 4000  # characters of a line's text and of its traceback


def tail(
    folder: Path, level: str = "info", process: str = "", words: str = "", *, libraries: bool = False
) -> dict[str, Any]:
    """Oldest first. `process`: a name or a pattern with `*`; `words`: text that a line contains; `libraries`: with
    the remarks of libraries, of which otherwise only errors are shown."""
    if level not in RANKS:
        raise MalformedMessage(f"level={level}: one of {', '.join(RANKS)} is expected")
    found = logs(folder / "logs")
    chosen = Filter(level=level, process=process, libraries=libraries)
    wanted = words.casefold()
    matching = [
        entry
        for log in found
        if not process or fnmatchcase(log.process, process)
        for entry in _newest(log)
        if chosen.matches(entry) and (not wanted or wanted in _text(entry).casefold())
    ]
    entries = sorted((entry for entry in matching if not chosen.hides(entry)), key=lambda entry: entry.t)
    return {
        "processes": sorted({log.process for log in found}),
        "total": len(entries),
        "hidden": len(matching) - len(entries),
        "lines": [_row(entry) for entry in entries[-MOST:]],
    }


def _newest(log: Log) -> Iterator[Entry]:
    """The entries of the log's last `TAIL_BYTES`. A file that is read in part begins with the rest of a line, which
    is left out."""
    last = LastStamp()
    with contextlib.ExitStack() as stack:
        for file, begin in _parts(log, stack):
            file.seek(begin)
            if begin:
                file.readline(LONGEST)
            for line in file:
                yield from parse(line, log, last)


def _parts(log: Log, stack: contextlib.ExitStack) -> list[tuple[BinaryIO, int]]:
    """Open files, oldest first, each with the byte to read from. The newest is opened first: a file that is rotated
    in the meantime is then met a second time and left out."""
    parts: list[tuple[BinaryIO, int]] = []
    seen: set[Inode] = set()
    left = TAIL_BYTES
    for path in reversed(log.files):
        if left <= 0:
            break
        with contextlib.suppress(OSError):
            file = stack.enter_context(open_log(path))
            if (place := inode(file)) not in seen:
                seen.add(place)
                size = file.seek(0, 2)
                parts.append((file, max(0, size - left)))
                left -= size
    return parts[::-1]


def _text(entry: Entry) -> str:
    """As it is shown."""
    text = f"{entry.text} {entry.error.message} {entry.error.traceback}" if entry.error else entry.text
    return readable(text)


def _row(entry: Entry) -> dict[str, Any]:
    trace = ""
    if entry.error is not None:
        trace = entry.error.traceback.strip() or f"{entry.error.type}: {entry.error.message}"
    return {
        "t": entry.t,
        "level": entry.level or "info",
        "process": entry.process,
        "text": readable(entry.text[:LONGEST_LINE]),
        "trace": trace[-LONGEST_LINE:],
    }


MOST_ROWS = 500  # prompts in one answer
LISTED = 1000  # characters of a prompt in it
PACKAGES = ("python", "rhymed", "torch", "vllm")
NO_ROWS = (
    "metrics.jsonl is not in the run's folder, though steps were trained: their curves, numbers and epochs cannot be"
    " shown; the timeline and the store are complete"
)


class Source:
    """`folder` is a run's. Answers are plain data, for `encode`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.rows = StepRows(self.folder / "metrics.jsonl")
        self._stored = OpenStore(self.folder)
        self._progress = Progress()
        self._config: tuple[int, dict[str, Any]] = (0, {})

    def close(self) -> None:
        self._stored.close()

    @property
    def config(self) -> dict[str, Any]:
        """As it was written, by whichever release; empty: there is none."""
        file = self.folder / "config.json"
        with contextlib.suppress(OSError, ValueError):
            if (at := file.stat().st_mtime_ns) != self._config[0]:
                config = json.loads(file.read_text())
                self._config = at, config if isinstance(config, dict) else {}
        return self._config[1]

    def run(self, queues: Queues | None) -> dict[str, Any]:
        config = self.config
        self.rows.refresh()
        rollout, trainer = _section(config, "rollout"), _section(config, "trainer")
        step = queues.step if queues else self.rows.last + 1 or self._trained()
        steps = (queues.steps if queues else 0) or self._steps(rollout, trainer)
        # A living run may be about to write its first row.
        lacks_rows = self.rows.last < 0 and step > (queues is not None) and not self.rows.file.exists()
        done = queues.finished if queues else (bool(steps) and step >= cast(int, steps)) or self._has_finished()
        return {
            "name": str(_section(config, "run").get("name") or self.folder.name),
            "folder": str(self.folder),
            "live": queues is not None,
            "state": "finished" if done else "running" if queues else "stopped",
            "step": step,
            "steps": steps,
            "version": queues.version if queues else step,
            "epochs": trainer.get("epochs"),
            "group_size": rollout.get("group_size"),
            "prompts_per_step": rollout.get("prompts_per_step"),
            "started": self._started(),
            **self._times(steps, alive=queues is not None),
            "config": redacted(config),
            "about": about(redacted(config), provenance.read(self.folder)),
            "versions": versions(),
            "missing": NO_ROWS if lacks_rows else "",
        }

    def queues(self, queues: Queues | None) -> dict[str, Any] | None:
        """The snapshot of a living run, and its times."""
        return None if queues is None else {**plain(queues), **self._times(queues.steps, alive=True)}

    def _times(self, steps: int | None, *, alive: bool) -> dict[str, float | None]:
        self._progress.read(self.folder)
        return self._progress.times(steps, time.time() if alive else 0.0)._asdict()

    def _trained(self) -> int:
        """Number of trained steps according to the timeline; for a run without rows."""
        trained = (event.step for event in timeline.read(self.folder).events if event.event == "trained")
        return max((step + 1 for step in trained if step is not None), default=0)

    def _steps(self, rollout: dict[str, Any], trainer: dict[str, Any]) -> int | None:
        """Of the whole run, if the run is not alive to say; None: unknown."""
        if isinstance(trainer.get("steps"), int):
            return int(trainer["steps"])
        if _section(self.config, "eval").get("datasets"):
            return None  # the store has their prompts too
        with contextlib.suppress(StoreError, ConfigError, KeyError, TypeError, ZeroDivisionError):
            with self._stored.open() as folder:
                prompts = folder.browse.totals().prompts
            return int(trainer["epochs"] * prompts // rollout["prompts_per_step"])
        return None

    def _has_finished(self) -> bool:
        """According to its timeline, of which only the part after the newest step is read."""
        return timeline.read(self.folder, self.rows.newest("time") or 0.0).finished

    def _started(self) -> float | None:
        """Unix seconds: the start of its first step, or else when its configuration was written."""
        for step in sorted(self.rows.counted):
            row = self.rows.counted[step]
            if row.get("time") is not None:
                return float(row["time"]) - float(row.get("timing_s/step") or 0.0)
        with contextlib.suppress(OSError):
            return (self.folder / "config.json").stat().st_mtime
        return None

    def news(
        self, queues: Queues | None, serial: int = 0, since: float = 0.0, most: int = spans.MOST_SPANS
    ) -> dict[str, Any]:
        """What is new to a client that has all rows up to this serial, and the timeline up to the time `since`."""
        self.rows.refresh()
        steps = self.rows.answer(serial) if serial != self.rows.serial else None
        return {
            "queues": self.queues(queues),
            "steps": steps and {**steps, "advice": self.rows.advice(self.config)},
            "timeline": spans.answer(self.folder, since, most),
        }

    def lengths(self) -> dict[str, Any]:
        return {"epochs": self._stored.catalog().lengths}

    def rewards(self) -> dict[str, Any]:
        return {"epochs": self._stored.catalog().rewards}

    def prompts(
        self, query: str = "", sort: str = "id", offset: int = 0, limit: int = 50, order: str = "", kind: str = ""
    ) -> dict[str, Any]:
        """`order`: asc or desc; empty: ids ascending, all else descending. `kind`: empty: all."""
        if sort not in SORTS:
            raise MalformedMessage(f"sort={sort}: one of {', '.join(SORTS)} is expected")
        if order not in ("", "asc", "desc"):
            raise MalformedMessage(f"order={order}: asc or desc is expected")
        if kind and kind not in KINDS:
            raise MalformedMessage(f"kind={kind}: one of {', '.join(KINDS)} is expected")
        catalog = self._stored.catalog()
        numbers = catalog.order(sort, down=order == "desc" if order else sort != "id", kind=kind or None)
        with self._stored.open() as folder:

            def text(number: int) -> str:
                return self._stored.text(folder.browse, catalog.ids[number])

            if words := " ".join(query.split()).casefold():
                numbers = [
                    number
                    for number in numbers
                    if catalog.ids[number].startswith(words) or words in " ".join(text(number).split()).casefold()
                ]
            shown = numbers[offset : offset + min(limit, MOST_ROWS)]
            rows = catalog.rows(shown, [text(number)[:LISTED] for number in shown])
        return {
            "total": len(numbers),
            "prompts": rows,
            "kinds": catalog.kinds,
            "damaged": catalog.columns.damaged,
        }

    def responses(self, query: str, start: str = "") -> dict[str, Any]:
        """Responses that contain these words. `start`: the id of the prompt to begin at; empty: the first."""
        if start:
            records.prompt_key(start)
        ids = self._stored.catalog().ids
        with self._stored.open() as folder:
            return {**samples.search(folder, ids, query, start), "prompts": len(ids)}

    def logs(
        self, level: str = "info", process: str = "", query: str = "", *, libraries: bool = False
    ) -> dict[str, Any]:
        return tail(self.folder, level, process, query, libraries=libraries)

    def prompt(self, prompt: str) -> dict[str, Any]:
        records.prompt_key(prompt)
        with self._stored.open() as folder:
            return samples.prompt_page(folder, prompt)

    def sample(self, step: int, prompt: str, index: int, *, by_token: bool = False) -> dict[str, Any]:
        sample = SampleId(step, prompt, index)
        records.sample_key(sample)
        with self._stored.open() as folder:
            return samples.sample_page(folder, sample, by_token=by_token)

    def opened(self) -> contextlib.AbstractContextManager[RunFolder]:
        """The store. Raises `ConfigError` if there is none on this machine, `StoreError` if it cannot be read."""
        return self._stored.open()

    def store(self, queues: Queues | None) -> dict[str, Any]:
        """If the store is on another machine: what the run reported last."""
        settings = _section(self.config, "store")
        limit = settings.get("map_gib")
        limit_bytes = int(limit * (1 << 30)) if isinstance(limit, int | float) else None
        try:
            with self._stored.open() as folder:
                totals = folder.browse.totals()
            sizes: dict[str, int | None]
            sizes = {"samples": totals.samples, "tokens": totals.tokens, "used_bytes": totals.used_bytes}
        except (StoreError, ConfigError) as error:
            self.rows.refresh()
            reported = queues.store if queues else {}
            names = ("samples", "tokens", "used_bytes")
            numbers = {name: reported.get(name, self.rows.newest(f"store/{name}")) for name in names}
            sizes = {name: None if value is None else int(value) for name, value in numbers.items()}
            return {**sizes, "limit_bytes": limit_bytes, "missing": str(error)}
        return {**sizes, "limit_bytes": limit_bytes, "missing": ""}


def encode(answer: Any) -> bytes:
    """One line of JSON; numbers that are not finite become null."""
    return msgspec.json.encode(answer)


@cache
def versions() -> dict[str, str | None]:
    """Of this installation; None: not installed."""
    found = provenance.versions()
    return {name: found.get(name) or found.get(f"{name}-cpu") for name in PACKAGES}


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


# The run's store, opened read-only next to the process that writes it. Blocking: for one thread.
#
# It is opened at the first request, and again after the file was replaced or a request failed, so the dashboard need
# not be restarted. The catalog is kept until the store changes, and then longer the more it cost; prompt texts, which
# never change, are cached up to a bound.

FRESH_S = 2.0  # a catalog is kept at least this long
FRESH_PER_COST = 20  # and at least this many times the time that it took
CACHED_CHARACTERS = 16 << 20  # of prompt texts
LONGEST_TEXT = 20_000  # characters of a prompt, for lists and searches


class OpenStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader: StoreReader | None = None
        self._inode = 0
        self._run: RunFolder | None = None
        self._catalog: Catalog | None = None
        self._changes = -1
        self._surveyed_at = self._cost = 0.0
        self._texts: dict[str, str] = {}
        self._characters = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[RunFolder]:
        """Raises `ConfigError` if there is no store on this machine, `StoreError` if it cannot be read."""
        try:
            yield self._opened()
        except StoreError:
            self.close()
            raise

    def _opened(self) -> RunFolder:
        store = self.folder / "store"
        try:
            inode = (store / "data.mdb").stat().st_ino
        except OSError:
            self.close()
            raise ConfigError(
                f"there is no store in {self.folder} on this machine: run `rhymed view` on the machine of the store"
                " process to see samples"
            ) from None
        if self._run is None or inode != self._inode:
            self.close()
            self._reader, self._inode = StoreReader(store), inode
            self._run = RunFolder(self.folder, self._reader.browse)
        return self._run

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._run = self._catalog = None
        self._texts.clear()
        self._characters = 0

    def catalog(self) -> Catalog:
        with self.open():
            assert self._reader is not None, "it was opened"
            changes, now = self._reader.changes, time.monotonic()
            kept_s = max(FRESH_S, FRESH_PER_COST * self._cost)
            if self._catalog is None or (changes != self._changes and now > self._surveyed_at + kept_s):
                self._catalog, self._changes = Catalog(self._reader.browse.columns()), changes
                self._surveyed_at = time.monotonic()
                self._cost = self._surveyed_at - now
            return self._catalog

    def text(self, browse: Browse, prompt: str) -> str:
        """The prompt's text, or the beginning of a very long one."""
        if (text := self._texts.get(prompt)) is None:
            text = text_of(browse, prompt)[:LONGEST_TEXT]
            if self._characters < CACHED_CHARACTERS:
                self._texts[prompt] = text
                self._characters += len(text)
        return text
