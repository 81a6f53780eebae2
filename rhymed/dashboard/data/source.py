"""Everything that the dashboard answers from a run's folder and store, as plain data.

Works next to a living run and on whatever a run left behind: what is missing is null, empty, or a sentence. Numbers
of the living run come in with `queues`. Blocking: one thread owns it (`thread.SourceThread`).
"""

from __future__ import annotations

import contextlib
import json
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import msgspec

from rhymed.dashboard.data import logtail, samples, search
from rhymed.dashboard.data import timeline as spans
from rhymed.dashboard.data.catalog import KINDS, SORTS
from rhymed.dashboard.data.steps import StepRows
from rhymed.dashboard.data.stored import OpenStore
from rhymed.dashboard.snapshots import plain
from rhymed.errors import ConfigError, MalformedMessage, StoreError
from rhymed.messages import Queues, SampleId
from rhymed.run import timeline
from rhymed.run.progress import Progress
from rhymed.run.redact import redacted
from rhymed_store.codec import records

MOST_ROWS = 500  # prompts in one answer
LISTED = 1000  # characters of a prompt in it
PACKAGES = ("rhymed", "torch", "vllm")
NO_ROWS = (
    "metrics.jsonl is not in the run's folder, though steps were trained: their curves, numbers and epochs cannot be"
    " shown; the timeline and the store are complete"
)


class Source:
    """`folder` is a run's. Answers are plain data, for `encode`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.rows = StepRows(self.folder / "metrics.jsonl")
        self.seen = 0  # serial of the rows when they were last polled
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

    def steps(self, after: int = -1, since: int = 0) -> dict[str, Any]:
        self.rows.refresh()
        return {**self.rows.answer(after, since=since), "advice": self.rows.advice(self.config)}

    def timeline(self, since: float = 0.0) -> dict[str, Any]:
        return spans.answer(self.folder, since)

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
            return {**search.search(folder, ids, query, start), "prompts": len(ids)}

    def logs(
        self, level: str = "info", process: str = "", query: str = "", *, libraries: bool = False
    ) -> dict[str, Any]:
        return logtail.tail(self.folder, level, process, query, libraries=libraries)

    def prompt(self, prompt: str) -> dict[str, Any]:
        records.prompt_key(prompt)
        with self._stored.open() as folder:
            return samples.prompt_page(folder, prompt)

    def sample(self, step: int, prompt: str, index: int, *, by_token: bool = False) -> dict[str, Any]:
        sample = SampleId(step, prompt, index)
        records.sample_key(sample)
        with self._stored.open() as folder:
            return samples.sample_page(folder, sample, by_token=by_token)

    def store(self, queues: Queues | None) -> dict[str, Any]:
        """If the store is on another machine: what the run reported last."""
        settings = _section(self.config, "store")
        limit, shards = settings.get("map_gib"), settings.get("shards", 1)
        limit_bytes = int(limit * shards * (1 << 30)) if isinstance(limit, int | float) else None
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
    import platform

    installed: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        installed[package] = None
        for name in (package, f"{package}-cpu"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                installed[package] = metadata.version(name)
                break
    return installed


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}
