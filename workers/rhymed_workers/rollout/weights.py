"""Brings the wanted policy version into the engine: fetched, loaded in place, reported. Of several only the newest.

What runs ahead of its weights is stopped before, and goes on after. Weights are the same only when the number and the
life of the trainer that made them agree. Knows neither samples' fates nor the broker.
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
from rhymed_workers.rollout.download import Fetcher

log = logging.getLogger(__name__)

AGAIN_S = 1.0


class Loading:
    """`before` stops what must not be loaded under; `told` reports a version and the seconds that it took."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        fetcher: Fetcher,
        before: Callable[[], None],
        told: Callable[[int, float], Awaitable[None]],
        sheet: Timesheet,
    ) -> None:
        self._name, self._engine, self._fetcher, self._sheet = name, engine, fetcher, sheet
        self._before, self._told = before, told
        self._wanted: LoadVersion | None = None
        self._news = asyncio.Event()  # a version is wanted
        self._failing: tuple[LoadVersion, float] | None = None  # what was not fetched, and since when
        self.life = ""  # of the trainer whose weights are loaded
        self.ready = asyncio.Event()  # a published version is loaded
        self.busy = False
        self.timings: dict[str, float] = {}  # of the last load

    def want(self, order: LoadVersion) -> None:
        self._wanted = order
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. Raises `EngineError` when the engine has died of it.

        And `DeadlineExceeded` when what is wanted could not be fetched for `PATIENCE_S`.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            wanted = self._wanted
            assert wanted is not None, "news is a wanted version"
            self.busy = True
            try:
                seconds = await self._load(wanted)
            except EngineError:
                raise
            except RhymedError as error:
                self._bear(wanted, error)
                log.warning("%s: version %d not fetched: %s; again soon", self._name, wanted.version, error)
                await asyncio.sleep(AGAIN_S)
                self._news.set()
                continue
            finally:
                self.busy = False
            self._failing = None
            await self._told(wanted.version, seconds)

    def _bear(self, wanted: LoadVersion, error: RhymedError) -> None:
        """A failure to fetch, unless what is wanted has failed for too long."""
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
        with self._sheet.during("fetching"):
            path = await self._fetcher.fetch(wanted.version, wanted.weights)
        fetch_s = time.monotonic() - start
        self._before()
        with self._sheet.during("loading"):
            splits = await self._engine.load(wanted.version, path)
        self.life = wanted.life
        seconds = time.monotonic() - start
        self.timings = {"timing_s/fetch_weights": fetch_s, "timing_s/load_weights": seconds}
        parts = ", ".join(f"{name} {value:.3f}" for name, value in {"fetch": fetch_s, **splits}.items())
        log.info("%s: version %d loaded in %.3f s: %s", self._name, wanted.version, seconds, parts)
        self.ready.set()
        return seconds
