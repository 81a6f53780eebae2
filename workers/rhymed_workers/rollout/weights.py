"""Loads the newest wanted policy version into the engine: download, load in place, report; or puts it to sleep.

Samples that run ahead of their weights are interrupted before a load and continue after it. Two weights are the same
only if both the version number and the life of the trainer that made them agree. The newest order counts: an engine
that is to sleep does not load first. `Timesheet` accounts for the time. Knows no samples and no broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from rhymed.core.errors import ConfigError, DeadlineExceeded, EngineError, RhymedError, Unstartable
from rhymed.core.messages import LoadVersion, Sleep
from rhymed.core.service.retry import PATIENCE_S, WAITS
from rhymed.core.service.stopwatch import stats_of
from rhymed_workers.engines.base import Engine
from rhymed_workers.weights.fetch import Fetcher

log = logging.getLogger(__name__)

RETRY_S = 1.0


class WeightLoader:
    """`before_load` interrupts samples; `report` gets a loaded version, None for sleep, and the seconds that it took.
    `wake`: called before the weights are loaded into an engine that is asleep, which may not have been started yet.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        fetcher: Fetcher,
        before_load: Callable[[], None],
        report: Callable[[int | None, float], Awaitable[None]],
        timesheet: Timesheet,
        wake: Callable[[], Awaitable[None]],
        *,
        asleep: bool = False,
    ) -> None:
        self._name, self._engine, self._fetcher, self._timesheet = name, engine, fetcher, timesheet
        self._before_load, self._report, self._wake = before_load, report, wake
        self._wanted: LoadVersion | Sleep | None = None
        self._changed = asyncio.Event()  # another version is wanted
        self._failing: tuple[LoadVersion, float] | None = None  # the order that fails, and since when
        self._waiting: object = None  # while it fails, see `Waits`
        self.life = ""  # of the trainer whose weights are loaded
        self.ready = asyncio.Event()  # a published version is loaded
        self.busy = False
        self.asleep = asleep  # its memory is free
        self.timings: dict[str, float] = {}  # of the last load

    def want(self, order: LoadVersion | Sleep) -> None:
        self._wanted = order
        self._changed.set()

    @property
    def waking(self) -> bool:
        """The newest order is to load: the engine takes memory on its GPUs, or has it."""
        return isinstance(self._wanted, LoadVersion)

    async def run(self) -> None:
        """Until cancelled. Raises `EngineError`, `Unstartable` of an engine that wakes for the first time, and
        `DeadlineExceeded` if a version cannot be fetched."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            assert wanted is not None, "a change is an order"
            self.busy = True
            try:
                seconds = await (self._sleep() if isinstance(wanted, Sleep) else self._load(wanted))
            except (EngineError, Unstartable):
                raise
            except RhymedError as error:
                if isinstance(wanted, Sleep) or isinstance(error, ConfigError):
                    raise
                self._check_patience(wanted, error)
                log.warning("%s: version %d not fetched: %s; retrying soon", self._name, wanted.version, error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()
                continue
            finally:
                self.busy = False
            self._failing = None
            WAITS.end(self._waiting)
            await self._report(None if isinstance(wanted, Sleep) else wanted.version, seconds)

    def _check_patience(self, wanted: LoadVersion, error: RhymedError) -> None:
        """Raises `DeadlineExceeded` if this version has failed for too long."""
        now = time.monotonic()
        if self._failing is None or self._failing[0] != wanted:
            self._failing = wanted, now
            WAITS.end(self._waiting)
            self._waiting = WAITS.begin(f"the weights of version {wanted.version}", error)
        elif now - self._failing[1] >= PATIENCE_S:
            raise DeadlineExceeded(
                f"fetching weights of version {wanted.version} from {wanted.weights}: given up after"
                f" {PATIENCE_S:g} s: {error}"
            ) from error

    async def _sleep(self) -> float:
        if self.asleep:
            return 0.0
        start = time.monotonic()
        self._before_load()
        with self._timesheet.during("loading"):
            await self._engine.sleep()
        self.asleep = True
        seconds = time.monotonic() - start
        self.timings["timing_s/sleep"] = seconds
        log.info("%s: asleep after %.3f s", self._name, seconds)
        return seconds

    async def _load(self, wanted: LoadVersion) -> float:
        if (wanted.version, wanted.life) == (self._engine.version, self.life) and not self.asleep:
            return 0.0
        start = time.monotonic()
        with self._timesheet.during("fetching"):
            path = await self._fetcher.fetch(wanted.version, wanted.weights)
        fetch_s = time.monotonic() - start
        self._before_load()
        with self._timesheet.during("loading"):
            if self.asleep:
                await self._wake()
            splits = await self._engine.load(wanted.version, path)
        self.life, self.asleep = wanted.life, False
        seconds = time.monotonic() - start
        self.timings = {"timing_s/fetch_weights": fetch_s, "timing_s/load_weights": seconds}
        parts = ", ".join(f"{name} {value:.3f}" for name, value in {"fetch": fetch_s, **splits}.items())
        log.info("%s: version %d loaded in %.3f s: %s", self._name, wanted.version, seconds, parts)
        self.ready.set()
        return seconds


# Where a rollout worker's time goes: the engine's own account, and weight updates as the worker sees them.
#
# Invariant: the seconds of all activities add up to the time since the timesheet was made. While the engine loads new
# weights all time is `update`; while they are fetched, only the time that the engine is idle. Knows no engine.

EngineSeconds = Callable[[], Mapping[str, float]]
"""Busy seconds by activity since the engine started, those of the present activity up to now."""

Phase = Literal["fetching", "loading"]
"""Of an update. While weights are fetched the engine may work; while it loads them its requests wait."""


class Timesheet:
    """`engine_seconds` may be set later: until then there is no engine, and all time is idle."""

    def __init__(
        self, engine_seconds: EngineSeconds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine_seconds = engine_seconds
        self._clock = clock
        self._at = clock()
        self._totals = {"idle": 0.0, "update": 0.0}
        self._last: dict[str, float] = {}  # the engine's seconds at the last reading
        self._phase: Phase | None = None

    def stats(self) -> dict[str, float]:
        """For `Heartbeat.stats`."""
        self._settle()
        return stats_of("rollout", self._totals)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """One phase at a time."""
        self._settle()
        self._phase = phase
        try:
            yield
        finally:
            self._settle()
            self._phase = None

    def _settle(self) -> None:
        """Account for the time since the last call. The engine's seconds never count for more than our clock's."""
        seconds = self.engine_seconds() if self.engine_seconds else {}
        now = self._clock()
        passed, self._at = now - self._at, now
        busy = {name: max(0.0, total - self._last.get(name, 0.0)) for name, total in seconds.items()}
        self._last.update(seconds)
        if self._phase == "loading":
            self._totals["update"] += passed
            return
        total = sum(busy.values())
        share = min(1.0, passed / total) if total > 0 else 0.0
        for name, part in busy.items():
            self._totals[name] = self._totals.get(name, 0.0) + part * share
        self._totals["update" if self._phase else "idle"] += max(0.0, passed - total * share)
