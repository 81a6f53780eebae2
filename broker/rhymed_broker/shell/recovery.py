"""Where the run is: reads the dataset, and starts the ledger at the trainer's position from the store's journal.

The dataset is read once. The ledger starts again whenever a trainer joins at another position than the ledger's.
Nothing here must survive: the store's journal and the trainer's position are the truth. Knows no workers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

from rhymed.core.config import Config
from rhymed.core.errors import CheckpointLost, FilesLost, RhymedError
from rhymed.core.messages import Drawn, Journal, JournalEntry, LengthRow
from rhymed.core.run.folder import identity
from rhymed.core.run.layout import RunLayout, ids_of
from rhymed.core.service.retry import retry_store
from rhymed.core.steps import is_evaluation
from rhymed.core.text import quoted
from rhymed.inputs.rows import Row
from rhymed_broker.ledger.ledger import Evaluation, Ledger, evaluation_of
from rhymed_broker.plan import Plan, mixture_of, sampler_of
from rhymed_broker.shell.delivery import Outbox
from rhymed_broker.status.timeline import TimelineRecorder
from rhymed_store.client import StoreClient

log = logging.getLogger(__name__)

RECALLED = 256  # prompts per request for their lengths
NO_REWARD = "its step was trained without it: the store has no reward of it"  # why a sample was dropped
NOT_PLANNED = "the run asks for no such sample"


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
        self.position: int | None = None  # the trainer's, while the ledger has to start there
        self._config, self._places = config, places
        self._ledger, self._store = ledger, store
        self._outbox, self._timeline = outbox, timeline
        self._evaluation: Evaluation | None = None
        self._moved = asyncio.Event()  # `position` was set

    @property
    def steps(self) -> int:
        """Of the whole run; 0: not known yet."""
        return self.plan.steps if self.plan else 0

    def restart_at(self, position: int) -> None:
        self._ledger.pause()
        self.position = position
        self._moved.set()

    async def run(
        self,
        fail: Callable[[RhymedError], Awaitable[NoReturn]],
        wake: Callable[[], None],
    ) -> None:
        """Read the dataset, then start the ledger at each position that a trainer reports."""
        await self._prepare()
        while True:
            await self._moved.wait()
            self._moved.clear()
            position = self.position
            if position is None:
                continue
            sampler = self.plan.sampler if self.plan else None
            recent = sampler.recent + self._ledger.rules.reach + 1 if sampler else 0
            journal = await retry_store(partial(self._store.journal, 0, recent), "read the journal")
            if self._moved.is_set():
                continue  # another trainer joined meanwhile
            if position < journal.forgotten:
                await fail(_behind(position, journal.forgotten, self._places))
            if position > (end := _end(journal)):
                await fail(_ahead(position, end, self._places))
            self._start(position, journal.entries, journal.drawn)
            wake()

    def _start(self, position: int, journal: list[JournalEntry], drawn: list[Drawn]) -> None:
        assert self.plan is not None, "the dataset is read first"
        self._settle(self.plan, position, journal)
        self.position = None
        now = time.monotonic()
        self._ledger.start(self.plan, position, journal, now, self._evaluation, drawn)
        found = [entry for entry in journal if entry.id.step >= position]
        self._timeline.event("begun", time.monotonic(), step=position, text=f"of {self.steps} steps")
        log.info("%d of %d steps trained, %d samples found in the journal", position, self.steps, len(found))

    def _settle(self, plan: Plan, position: int, journal: list[JournalEntry]) -> None:
        """Mark the samples of trained steps, where a broker died before it did."""
        past = {entry.id: entry.state for entry in journal if entry.id.step < position}
        unsettled = {id: state for id, state in past.items() if state in ("generated", "scored")}
        strange = [id for id in unsettled if not plan.may_have(id)]  # anybody with a worker's key can write them
        planned = {id: state for id, state in unsettled.items() if plan.may_have(id)}
        if done := [id for id, state in planned.items() if state == "scored"]:
            self._outbox.put("mark trained", partial(self._store.mark, done, "trained"))
        if left := [id for id, state in planned.items() if state == "generated"]:
            self._outbox.put("mark dropped", partial(self._store.mark, left, "dropped", NO_REWARD))
        if strange:
            self._outbox.put("mark dropped", partial(self._store.mark, strange, "dropped", NOT_PLANNED))

    async def recall(self, step: int, prompts: list[str]) -> None:
        """Forecasts are better with the lengths of earlier epochs, but nothing waits for them."""
        past: dict[str, LengthRow] = {}
        try:
            for first in range(0, len(prompts), RECALLED):
                part = prompts[first : first + RECALLED]
                past |= await self._store.lengths(part, step)
        except RhymedError as error:
            log.warning("step %d is scheduled without the lengths of earlier epochs: %s", step + 1, error)
        if past:
            self._ledger.remember(past)

    async def _prepare(self) -> None:
        from rhymed.inputs.prepared import kept_rows

        config, folder = self._config, self._places.folder
        id = (ids_of(folder) or [""])[-1]
        rollout, trainer = config.rollout, config.trainer
        parts = config.data.parts if trainer.steps != 0 else []
        rows = [await asyncio.to_thread(kept_rows, config, folder, data) for data in parts]
        held_out = {
            data.name: await asyncio.to_thread(kept_rows, config, folder, data) for data in config.eval.datasets
        }
        await retry_store(lambda: self._store.open_run(config.run.name, fingerprint(config), id), "open the run")
        prompts = [await self._put_prompts(part) for part in rows]
        datasets = {name: await self._put_prompts(held) for name, held in held_out.items()}
        mixture = mixture_of(config.data, prompts, config.run.seed)
        sampler = sampler_of(config, mixture.size)
        self.plan = Plan(
            mixture, rollout.prompts_per_step, rollout.group_size, trainer.epochs, trainer.steps, sampler=sampler
        )
        self._evaluation = evaluation_of(config.eval, config.reward, datasets, self.steps)
        log.info("%d prompts, %d steps, held out: %s", mixture.size, self.steps, ", ".join(datasets) or "none")

    async def _put_prompts(self, rows: list[Row]) -> list[str]:
        """Stores the prompts; returns their ids."""
        ids: list[str] = await retry_store(lambda: self._store.put_prompts(rows), "keep the prompts")
        return ids


def _end(journal: Journal) -> int:
    """The step after the newest one that the store knows of."""
    steps = (entry.id.step for entry in journal.entries)
    return max([journal.forgotten, *(step + 1 for step in steps if not is_evaluation(step))])


def _behind(position: int, forgotten: int, places: RunLayout) -> CheckpointLost:
    return CheckpointLost(
        f"the trainer begins after {position} steps, but the store has deleted the log-probs of steps below"
        f" {forgotten}, which a checkpoint covered: restore a checkpoint of at least {forgotten} steps in"
        f" {places.checkpoints}, continue without earlier samples (rhymed run --resume {quoted(places.folder)}"
        " --without-history), or start a new run"
    )


def _ahead(position: int, end: int, places: RunLayout) -> FilesLost:
    return FilesLost(
        f"the trainer begins after {position} steps, but the newest samples in {places.database} are of step {end}:"
        " it is older than the checkpoint, or of another run. Restore it, or continue without earlier samples:"
        f" rhymed run --resume {quoted(places.folder)} --without-history"
    )


def fingerprint(config: Config) -> str:
    """What must not change during a run, as text: the store refuses another."""
    return json.dumps(identity(config), sort_keys=True)
