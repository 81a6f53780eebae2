"""The newest numbers of the ledger, the trainer, the evaluation and the store, as one snapshot for people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from rhymed.errors import FilesLost, RhymedError
from rhymed.messages import GetQueues, Queues
from rhymed.service.retry import WAITS
from rhymed.service.service import LagMeter
from rhymed.text import counted
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.status import snapshot
from rhymed_broker.status.snapshot import RunInfo
from rhymed_store.client import StoreClient

STORE_POLL_S = 2.0
STORE_ANSWERS_S = 3.0


class Latest:
    def __init__(self, run: str, ledger: Ledger, lag: LagMeter) -> None:
        self.store: dict[str, float] = {}  # its last statistics
        self._run, self._ledger, self._lag = run, ledger, lag
        self._begun = time.monotonic()
        self._metrics: dict[str, float] = {}  # of the last trained step
        self._val: dict[str, float] = {}  # of the newest evaluation
        self._store_warning = ""

    def trained(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """A step's metrics, with the store's size."""
        self._metrics = {**metrics, **snapshot.stored(self.store)}
        return self._metrics

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        self._val = {"val/version": float(version), **metrics}

    async def watch(self, store: StoreClient) -> None:
        """Poll the store's statistics; a store that is away or full becomes a warning. Raises `FilesLost`."""
        most = 0
        while True:
            try:
                stats = await store.stats(deadline_s=STORE_ANSWERS_S)
                self._store_warning = stats.full
                self.store = snapshot.numbers(stats)
            except RhymedError as error:
                self._store_warning = f"the store does not answer: {error}"
            else:
                if stats.samples < most:  # it deletes none
                    raise FilesLost(
                        f"the store has {counted(stats.samples, 'sample')} and had {most:,}: it came back with other"
                        " files. Put those of this run back and resume it, or resume it with --without-history"
                    )
                most = stats.samples
            await asyncio.sleep(STORE_POLL_S)

    def queues(self, request: GetQueues, *, steps: int | None, finished: bool, warnings: Sequence[str]) -> Queues:
        """`steps`: of the whole run; None: the dataset is not read yet."""
        now = time.monotonic()
        run = RunInfo(
            name=self._run,
            uptime_s=now - self._begun,
            steps=steps,
            finished=finished,
            metrics=self._metrics,
            evaluation=self._val,
            lag_ms=self._lag.p99_ms(),
            store=self.store,
            warnings=[
                self._store_warning,
                f"the broker has waited {WAITS.longest}" if WAITS.longest else "",
                *warnings,
            ],
        )
        return snapshot.queues(self._ledger, now, run, only=request.worker if request.brief else None)
