"""Where the run is: what is trained in which step, and from which step on the ledger works.

The dataset is read once, then the ledger starts wherever a trainer says that it is, as often as a trainer says so.
Invariant: what is reported while the ledger has not started is applied as soon as it has. Nothing here must survive:
the store's journal and the trainer's position are the truth. Knows nothing of workers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from rhymed.config import Config
from rhymed.errors import CheckpointLost, RhymedError
from rhymed.inputs.rows import Row
from rhymed.messages import Ahead, Generated, GiveBack, JournalEntry, Scored
from rhymed.run.folder import identity
from rhymed.run.layout import RunLayout
from rhymed.service.retry import retry_store
from rhymed_broker.ledger.evaluation import Evaluation, evaluation_of
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.plan import Plan
from rhymed_broker.shell.outbox import Outbox
from rhymed_broker.status.timeline import TimelineRecorder
from rhymed_store.client import StoreClient

log = logging.getLogger(__name__)

Report = Generated | Scored | Ahead | GiveBack


class Recovery:
    def __init__(
        self,
        config: Config,
        places: RunLayout,
        ledger: Ledger,
        store: StoreClient,
        outbox: Outbox,
        timeline: TimelineRecorder,
    ) -> None:
        self.plan: Plan | None = None  # None: the dataset is not read yet
        self.position: int | None = None  # the trainer's, when the ledger has to start there
        self._config, self._places = config, places
        self._ledger, self._store, self._outbox, self._timeline = ledger, store, outbox, timeline
        self._evaluation: Evaluation | None = None
        self._moved = asyncio.Event()  # `position` was set
        self._early: list[Report] = []  # reports while the ledger was not started

    @property
    def steps(self) -> int:
        """Of the whole run; 0: not known yet."""
        return self.plan.steps if self.plan else 0

    def restart_at(self, position: int) -> None:
        self._ledger.pause()
        self.position = position
        self._moved.set()

    def keep(self, report: Report) -> None:
        """Until the ledger has started."""
        self._early.append(report)

    async def run(
        self,
        apply: Callable[[Report], None],
        fail: Callable[[RhymedError], Awaitable[NoReturn]],
        wake: Callable[[], None],
    ) -> None:
        """Read the dataset, then start the ledger wherever a trainer says it is."""
        await self._prepare()
        while True:
            await self._moved.wait()
            self._moved.clear()
            position = self.position
            if position is None:
                continue
            journal = await retry_store(partial(self._store.read_journal, 0), "read the journal")
            if self._moved.is_set():
                continue  # another trainer meanwhile
            if position < journal.forgotten:
                await fail(_behind(position, journal.forgotten, self._places.checkpoints))
            self._start(position, journal.entries)
            early, self._early = self._early, []
            for report in early:
                apply(report)
            wake()

    def _start(self, position: int, kept: list[JournalEntry]) -> None:
        assert self.plan is not None, "the dataset is read first"
        entries = [entry for entry in kept if entry.id.step >= position]
        if done := [entry.id for entry in kept if entry.id.step < position and entry.state == "scored"]:
            self._outbox.put("mark trained", partial(self._store.mark, done, "trained"))  # a broker died before it
        self.position = None
        self._ledger.start(self.plan, position, entries, time.monotonic(), self._evaluation)
        self._timeline.event("begun", time.monotonic(), step=position, text=f"of {self.steps} steps")
        log.info("%d of %d steps trained, %d samples found in the journal", position, self.steps, len(entries))

    async def _prepare(self) -> None:
        from rhymed.inputs.prepared import rows_of

        config, folder = self._config, self._places.folder
        rollout, trainer = config.rollout, config.trainer
        rows = await asyncio.to_thread(rows_of, config, folder, config.data) if trainer.steps != 0 else []
        held_out = {one.name: await asyncio.to_thread(rows_of, config, folder, one) for one in config.eval.datasets}
        await retry_store(lambda: self._store.open_run(config.run.name, fingerprint(config)), "open the run")
        prompts = await self._keep_rows(rows)
        datasets = {name: await self._keep_rows(kept) for name, kept in held_out.items()}
        self.plan = Plan(
            prompts, rollout.prompts_per_step, rollout.group_size, trainer.epochs, trainer.steps, config.run.seed
        )
        self._evaluation = evaluation_of(config.eval, config.reward, datasets, self.steps)
        log.info("%d prompts, %d steps, held out: %s", len(prompts), self.steps, ", ".join(datasets) or "none")

    async def _keep_rows(self, rows: list[Row]) -> list[str]:
        """Their ids; the store has them then."""
        ids: list[str] = await retry_store(lambda: self._store.put_prompts(rows), "keep the prompts")
        return ids


def _behind(position: int, forgotten: int, where: Path) -> CheckpointLost:
    return CheckpointLost(
        f"the trainer begins after {position} steps, but the store has let go of what training needs of the steps"
        f" below {forgotten}, which a checkpoint held: put one of at least {forgotten} steps back into {where}, or"
        " begin a new run"
    )


def fingerprint(config: Config) -> str:
    """What must not change between the parts of one run, readable: the store refuses another."""
    return json.dumps(identity(config), sort_keys=True)
