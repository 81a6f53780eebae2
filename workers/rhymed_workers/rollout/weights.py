"""Loads the newest wanted policy version into the engine: download, load in place, report.

Samples that run ahead of their weights are interrupted before a load and continue after it. Two weights are the same
only if both the version number and the life of the trainer that made them agree. Knows no samples and no broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from rhymed.errors import DeadlineExceeded, EngineError, RhymedError
from rhymed.messages import LoadVersion
from rhymed.service.retry import PATIENCE_S
from rhymed_workers.engines.base import Engine
from rhymed_workers.rollout.activity import Timesheet
from rhymed_workers.weights.fetch import Fetcher

log = logging.getLogger(__name__)

RETRY_S = 1.0


class WeightLoader:
    """`before_load` interrupts samples; `report` gets a loaded version and the seconds that it took."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        fetcher: Fetcher,
        before_load: Callable[[], None],
        report: Callable[[int, float], Awaitable[None]],
        timesheet: Timesheet,
    ) -> None:
        self._name, self._engine, self._fetcher, self._timesheet = name, engine, fetcher, timesheet
        self._before_load, self._report = before_load, report
        self._wanted: LoadVersion | None = None
        self._changed = asyncio.Event()  # another version is wanted
        self._failing: tuple[LoadVersion, float] | None = None  # the order that fails, and since when
        self.life = ""  # of the trainer whose weights are loaded
        self.ready = asyncio.Event()  # a published version is loaded
        self.busy = False
        self.timings: dict[str, float] = {}  # of the last load

    def want(self, order: LoadVersion) -> None:
        self._wanted = order
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. Raises `EngineError`, and `DeadlineExceeded` if a version cannot be fetched."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            assert wanted is not None, "a change is a wanted version"
            self.busy = True
            try:
                seconds = await self._load(wanted)
            except EngineError:
                raise
            except RhymedError as error:
                self._check_patience(wanted, error)
                log.warning("%s: version %d not fetched: %s; retrying soon", self._name, wanted.version, error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()
                continue
            finally:
                self.busy = False
            self._failing = None
            await self._report(wanted.version, seconds)

    def _check_patience(self, wanted: LoadVersion, error: RhymedError) -> None:
        """Raises `DeadlineExceeded` if this version has failed for too long."""
        now = time.monotonic()
        if self._failing is None or self._failing[0] != wanted:
            self._failing = wanted, now
        elif now - self._failing[1] >= PATIENCE_S:
            raise DeadlineExceeded(
                f"fetching weights of version {wanted.version} from {wanted.weights}: given up after"
                f" {PATIENCE_S:g} s: {error}"
            ) from error

    async def _load(self, wanted: LoadVersion) -> float:
        if (wanted.version, wanted.life) == (self._engine.version, self.life):
            return 0.0
        start = time.monotonic()
        with self._timesheet.during("fetching"):
            path = await self._fetcher.fetch(wanted.version, wanted.weights)
        fetch_s = time.monotonic() - start
        self._before_load()
        with self._timesheet.during("loading"):
            splits = await self._engine.load(wanted.version, path)
        self.life = wanted.life
        seconds = time.monotonic() - start
        self.timings = {"timing_s/fetch_weights": fetch_s, "timing_s/load_weights": seconds}
        parts = ", ".join(f"{name} {value:.3f}" for name, value in {"fetch": fetch_s, **splits}.items())
        log.info("%s: version %d loaded in %.3f s: %s", self._name, wanted.version, seconds, parts)
        self.ready.set()
        return seconds
