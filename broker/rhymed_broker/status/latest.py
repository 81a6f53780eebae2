"""What people are told of the run: the newest numbers that each source gave, as one snapshot.

Knows the ledger, and the store by what that says of itself; decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from rhymed.errors import RhymedError
from rhymed.messages import GetQueues, Queues
from rhymed.service.service import LagMeter
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.status import snapshot
from rhymed_store.client import StoreClient

STORE_LOOK_S = 5.0


class Latest:
    def __init__(self, run: str, ledger: Ledger, lag: LagMeter) -> None:
        self.store: dict[str, float] = {}  # as it told last
        self._run, self._ledger, self._lag = run, ledger, lag
        self._begun = time.monotonic()
        self._metrics: dict[str, float] = {}  # of the step trained last
        self._val: dict[str, float] = {}  # of the newest evaluation
        self._store_trouble = ""

    def trained(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """A step's row, with what the store has grown to."""
        self._metrics = {**metrics, **snapshot.stored(self.store)}
        return self._metrics

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        self._val = {"val/version": float(version), **metrics}

    async def watch(self, store: StoreClient) -> None:
        """So that a store that is away, or has no room, is told of while others wait for it."""
        while True:
            try:
                stats = await store.stats(deadline_s=STORE_LOOK_S)
                self._store_trouble = stats.full
                self.store = snapshot.numbers(stats)
            except RhymedError as error:
                self._store_trouble = f"the store does not answer: {error}"
            await asyncio.sleep(STORE_LOOK_S)

    def queues(self, question: GetQueues, *, steps: int | None, finished: bool, troubles: Sequence[str]) -> Queues:
        """`steps`: of the whole run; None: the dataset is not read yet."""
        return snapshot.queues(
            self._ledger,
            time.monotonic(),
            run=self._run,
            started_at=self._begun,
            steps=steps or 0,
            finished=finished,
            metrics=self._metrics,
            val=self._val,
            lag_ms=self._lag.p99_ms(),
            ready=steps is not None,
            others=[self._store_trouble, *troubles],
            brief=question.worker if question.brief else None,
            store=self.store,
        )
