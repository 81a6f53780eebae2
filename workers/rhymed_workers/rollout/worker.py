"""The rollout worker: receives samples, lets the engine generate them, stores them, then reports them to the broker.

A sample is in `_active` from its assignment until the broker has acknowledged it as generated or given back. Store,
broker and trainer may restart meanwhile. Running samples are saved as they grow (`PartialSaver`), so the next worker
continues where this one ended; a worker that is stopped saves the rest and leaves. Nothing is sampled before the
first published version is loaded. If the engine dies or stalls, the worker ends with `EngineError`, and its
supervisor starts it again. `HistoryLoader` brings a prompt's earlier responses to the engine.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from rhymed.core import errors, messages
from rhymed.core.config import Config
from rhymed.core.errors import EngineError, RhymedError
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import RunLayout
from rhymed.core.service import stopwatch
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import retry
from rhymed.core.tasks import watched
from rhymed.core.text import counted
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.engines.base import Engine, sampling_for
from rhymed_workers.engines.build import build_engine
from rhymed_workers.rollout.generation import ActiveSample, Generation
from rhymed_workers.rollout.reports import Reporter
from rhymed_workers.rollout.turns import PromptCache, Sessions, contexts, slots_of
from rhymed_workers.rollout.weights import Timesheet, WeightLoader
from rhymed_workers.weights.fetch import Fetcher, RelayOptions
from rhymed_workers.worker import Work, Worker

log = logging.getLogger(__name__)

# Saves the tokens of running samples to the store, so that a worker's death costs only the last few tokens.
#
# A sample's new tokens are saved when there are `MOST` of them, or after `rollout.save_every_s`; the worker that
# continues the sample begins with them (`PutPartials`). What cannot be saved now is saved the next time, with what
# has come since: nothing here delays an engine or ends a worker. If the store lacks a sample's earlier tokens,
# because another worker wrote there meanwhile, it is saved again from its first token.

MOST = 24  # unsaved tokens of one sample; about as many again arrive before the next check, at 250 per second
CHECK_S = 0.1
RETRY_S = 5.0  # after a failure: a full or ailing store must not get all unsaved tokens ten times per second
PUT_S = 10.0

Parts = Mapping[SampleId, tuple[int, Any]]
"""Sample -> (position of the first token, tokens)."""


class PartialSaver:
    """`active` returns the samples that the worker has now."""

    def __init__(
        self,
        every_s: float,
        store: StoreClient,
        generation: Generation,
        active: Callable[[], Iterable[ActiveSample]],
    ) -> None:
        self._every_s = every_s
        self._store, self._generation, self._active = store, generation, active
        self._failed = False  # the last attempt

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S if self._failed else min(CHECK_S, self._every_s / 2))
            await self.save(everything=False)

    async def save(self, *, everything: bool = True) -> None:
        """Save all unsaved tokens, or only those of samples that are due."""
        now = time.monotonic()
        unsaved = self._generation.unsaved(self._active())
        due = {sample: part for sample, part in unsaved.items() if everything or self._is_due(sample, len(part), now)}
        if not due:
            return
        parts = {sample.id: (sample.saved, part) for sample, part in due.items()}
        missing = await self._put(parts)
        if missing is None:
            return
        for sample, part in due.items():
            start = parts[sample.id][0]
            if sample.id in missing:
                sample.saved = 0
            elif sample.saved == start:  # else it was started again meanwhile
                sample.saved, sample.saved_at = start + len(part), now

    def _is_due(self, sample: ActiveSample, count: int, now: float) -> bool:
        return count >= MOST or now - max(sample.saved_at, sample.assigned_at) >= self._every_s

    async def _put(self, parts: Parts) -> Collection[SampleId] | None:
        """Ids whose earlier tokens the store does not have; None if the write failed."""
        try:
            missing = await self._store.put_partials(parts, deadline_s=PUT_S)
        except RhymedError as error:
            if not self._failed:
                log.warning("the tokens so far of %d samples are not saved: %s", len(parts), error)
            self._failed = True
            return None
        if self._failed:
            log.info("tokens of running samples are saved again")
        self._failed = False
        return missing


# Loads a prompt's earlier responses from the store into the engine, once per prompt and step, in the background.
#
# Nothing waits for it: a response that does not arrive is not drafted from. An unreachable store is logged once, and
# once more when it is back. Knows nothing of how the engine uses history.

REMEMBERED = 16384  # (prompt, step) pairs
WARNINGS = 5  # about history with another prompt length
READERS = 4  # concurrent requests to the store

Read = Callable[[str, int], Awaitable[list[StoredSample]]]
"""(prompt, step) -> responses of earlier steps, newest step first."""
Remember = Callable[[str, Sequence[int], list[StoredSample]], Awaitable[None]]
"""(prompt, its tokens, responses): the engine's `remember`."""


class HistoryLoader:
    def __init__(self, read: Read, remember: Remember) -> None:
        self._read, self._remember = read, remember
        self._requested: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._readers = asyncio.Semaphore(READERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable = False  # the store, at the last attempt
        self._mismatches = 0  # prompts with history of another prompt length

    def load(self, id: SampleId, prompt: Sequence[int]) -> None:
        """Start loading, unless a sibling of this sample has done so."""
        key = (id.prompt, id.step)
        if key in self._requested:
            return
        self._requested[key] = None
        while len(self._requested) > REMEMBERED:
            self._requested.popitem(last=False)
        watched(self._load(id, prompt), keep=self._tasks)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _load(self, id: SampleId, prompt: Sequence[int]) -> None:
        try:
            async with self._readers:
                past = await self._read(id.prompt, id.step)
            matching = [sample for sample in past if sample.info.prompt_length == len(prompt)]
            if len(matching) < len(past):
                self._warn_of_mismatch(id.prompt, len(prompt), past)
            if matching:
                await self._remember(id.prompt, prompt, matching)
        except EngineError:
            return  # `generate` raises it too
        except RhymedError as error:
            self._requested.pop((id.prompt, id.step), None)  # its next sample tries again
            if not self._unreachable:
                log.warning("no drafts from history while the store cannot be read: %s", error)
            self._unreachable = True
        except Exception:
            log.exception("prompt %s: no drafts from history", id.prompt)
        else:
            if self._unreachable:
                log.warning("history can be read again")
            self._unreachable = False

    def _warn_of_mismatch(self, prompt: str, length: int, past: Sequence[StoredSample]) -> None:
        """A few times only: every prompt of an imported run may be of another tokenizer."""
        self._mismatches += 1
        if self._mismatches > WARNINGS:
            return
        others = [sample.info.prompt_length for sample in past if sample.info.prompt_length != length]
        log.warning(
            "prompt %s: %d of %d earlier responses were to %d prompt tokens, now there are %d: they are of another"
            " tokenizer or template and are not used as drafts%s",
            prompt, len(others), len(past), others[0], length,
            "; further prompts like it are not logged" if self._mismatches == WARNINGS else "",
        )  # fmt: skip


def history_loader(config: Config, store: StoreClient, remember: Remember) -> HistoryLoader | None:
    """None: the engine does not draft from history."""
    drafts = config.drafts
    if config.rollout.engine != "vllm" or drafts.method == "none" or not drafts.responses:
        return None
    return HistoryLoader(lambda prompt, step: store.history(prompt, step, drafts.responses), remember)


# The worker.


class RolloutWorker(Worker):
    """Tests pass an `engine`; otherwise the configuration names it."""

    role, accepts = "rollout", messages.ToRollout

    def __init__(self, config: Config, layout: RunLayout, name: str, engine: Engine | None = None) -> None:
        super().__init__(config, layout, name)
        self._engine = engine

    async def open(self) -> None:
        relay = RelayOptions(self.config.net.relay, self.layout.bind)
        fetcher = Fetcher(self.name, keys=self.layout.keys("rollout"), relay=relay)
        self.closing.callback(fetcher.close)
        self.spawn(self._start(fetcher))  # an engine takes long to start, and a stop must not wait for it

    async def _start(self, fetcher: Fetcher) -> None:
        timesheet, colocated = Timesheet(), self.config.schedule.colocate
        if (engine := self._engine) is None:
            engine = await asyncio.to_thread(build_engine, self.config, self._read_rows)
        self.closing.push_async_callback(engine.close)
        # One after the other: two threads that import transformers at the same time see half-imported modules.
        reading = await contexts(self.config, self.store, self._read_rows)
        self.closing.callback(reading.close)
        if not colocated:  # else it is opened when it is first ordered to wake: the trainer may be using its GPUs
            await _open_once(engine, timesheet)
        history = history_loader(self.config, self.store, engine.remember)
        if history is not None:
            self.closing.callback(history.close)
        work = Generating(self, engine, fetcher, reading, history, timesheet)
        self.begin(work)
        if colocated:  # who leaves has freed the GPU
            self.closing.push_async_callback(engine.close)
        for task in work.tasks():
            self.spawn(task)

    async def _read_rows(self, prompts: Sequence[str]) -> list[Any]:
        rows: list[Any] = await retry(lambda: self.store.get_prompts(prompts), "reading prompts")
        return rows


async def _open_once(engine: Engine, timesheet: Timesheet) -> None:
    if timesheet.engine_seconds is None:
        await engine.open()
        timesheet.engine_seconds = engine.seconds


class Generating(Work):
    """`history`: None, the engine does not draft from it."""

    def __init__(
        self,
        worker: Worker,
        engine: Engine,
        fetcher: Fetcher,
        reading: PromptCache | Sessions,
        history: HistoryLoader | None,
        timesheet: Timesheet,
    ) -> None:
        super().__init__(worker)
        config = self.config
        self.engine, self._contexts, self._history, self._timesheet = engine, reading, history, timesheet
        self._active: dict[messages.SampleId, ActiveSample] = {}
        self._generation = Generation(
            engine,
            functools.partial(sampling_for, config.rollout, config.eval, config.run.seed),
            config.schedule.max_staleness,
            self._read_partial,
            self._report_parked,
        )
        self._weights = WeightLoader(
            self.name,
            engine,
            fetcher,
            functools.partial(self._generation.interrupt, self._active.values()),
            self._report_loaded,
            timesheet,
            functools.partial(_open_once, engine, timesheet),
            asleep=config.schedule.colocate,
        )
        self._reporter = Reporter(
            self.name, engine, self.store, self.membership, self._active, turns=config.environment.active
        )
        every_s = config.rollout.save_every_s if config.carries else 0.0
        self._saver = PartialSaver(every_s, self.store, self._generation, self._active.values) if every_s else None

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What runs at the same time as the broker's orders."""
        saving = [self._saver.run()] if self._saver is not None else []
        return [self._weights.run(), self._reporter.run(), self._watch_engine(), *saving]

    async def drain(self) -> None:
        """Save running samples, so that other workers continue them, and report finished ones."""
        if self._saver is not None:
            await self._saver.save()
        if self._active:
            await self._reporter.wait_until_reported()
        if self._saver is not None:  # tokens of the meantime
            await self._saver.save()

    async def take(self, message: Any) -> None:
        match message:
            case messages.Generate():
                self._accept(message)
            case messages.Cancel():
                await self._cancel(message.samples)
            case messages.Release():
                await self._release(message.samples)
            case messages.LoadVersion() | messages.Sleep():
                self._weights.want(message)

    def _accept(self, order: messages.Generate) -> None:
        if self.worker.stopping:
            raise errors.PeerGone(f"{self.name} leaves: it takes no more samples")
        with_partial = set(order.begun)
        fresh = [id for id in order.samples if id not in self._active or self._active[id].stored]
        for id in fresh:
            sample = self._active[id] = ActiveSample(id, time.monotonic(), id in with_partial)
            self.spawn(self._generate(sample))
        if fresh:
            log.info("received %s, first %s", counted(len(fresh), "sample"), fresh[0], extra=cause("taken", fresh))

    async def _cancel(self, ids: Sequence[messages.SampleId]) -> None:
        for id in ids:
            if id in self._active:
                self._active.pop(id).cancelled = True
            self.engine.cancel(id)
        log.info("cancelled %s, first %s", counted(len(ids), "sample"), ids[0], extra=cause("cancelled", ids))
        await self._generation.notify()

    async def _release(self, ids: Sequence[messages.SampleId]) -> None:
        more = cause("released", ids)
        log.info("asked to hand over %s, first %s", counted(len(ids), "sample"), ids[0], extra=more)
        for id in ids:
            sample = self._active.get(id)
            if sample is not None and sample.output is None:
                sample.released = True
                self.engine.cancel(id)
        await self._generation.notify()

    def introduce(self) -> dict[str, Any]:
        return {
            "slots": slots_of(self.config),
            "version": self.engine.version,
            "life": self._weights.life,
            "holding": list(self._active),
            "asleep": self._weights.asleep and not self._weights.waking,
        }

    def heartbeat(self) -> messages.Heartbeat:
        now, progress = time.monotonic(), self.engine.progress()
        holding = [
            messages.Holding(
                id=sample.id,
                tokens=sample.tokens or progress.get(sample.id, 0) + len(sample.prefix or ()),
                before=len(sample.prefix or ()),
                parked=sample.parked,
                seconds=now - sample.assigned_at,
            )
            for sample in self._active.values()
        ]
        stats = {**self.engine.stats(), **self._weights.timings, **self._timesheet.stats()}
        stats["rollout/stored"] = float(self._reporter.stored)
        return messages.Heartbeat(
            worker=self.name,
            version=self.engine.version,
            life=self._weights.life,
            phase=self._phase(),
            holding=holding,
            stats=stats,
        )

    def _phase(self) -> str:
        weights = self._weights
        return "update" if weights.busy else "asleep" if weights.asleep else "decode" if self._active else "idle"

    async def _generate(self, sample: ActiveSample) -> None:
        try:
            if not await self._contexts.begin(sample):
                await self._reporter.report_turned(sample)
                return
            assert sample.prompt is not None, "the sample has begun"
            if self._history is not None:
                self._history.load(sample.id, sample.prompt)
            await self._weights.ready.wait()
            output = await self._generation.run(sample)
        except (errors.DataError, errors.UnknownSample) as error:
            await self._reporter.give_back(sample, str(error))
            return
        except errors.EngineError:
            if self.worker.stopping:
                return  # the signal that ends this process also ends the engine
            raise
        if output is None or self._active.get(sample.id) is not sample:
            return  # cancelled
        if sample.released and output.finish_reason == "abort":
            await self._reporter.hand_over(sample, output)
        elif output.finish_reason == "abort":
            await self._reporter.give_back(sample, "the engine aborted it", retry=True)
        else:
            self._reporter.add(sample, output)

    async def _read_partial(self, id: messages.SampleId) -> Sequence[int]:
        """The tokens that this or another worker has saved of it; empty if the store has none."""
        if not self.config.carries:
            return ()
        partials = await retry(lambda: self.store.get_partials([id]), "reading a partial sample")
        tokens = partials[id].tolist() if id in partials else ()
        more = cause("begun", [id], tokens=len(tokens))
        if len(tokens):  # of a sample in turns, the turn may only begin
            log.info("sample %s continues from %d tokens in the store", id, len(tokens), extra=more)
        return tokens

    async def _report_parked(self, id: messages.SampleId) -> None:
        await self.membership.report(messages.Ahead(worker=self.name, samples=[id]), "reporting a parked sample")

    async def _report_loaded(self, version: int | None, seconds: float) -> None:
        """None: it is asleep."""
        if version is None:
            await self.membership.report(messages.Asleep(worker=self.name, seconds=seconds), "reporting sleep")
            return
        life = self._weights.life
        await self._generation.notify()
        loaded = messages.Loaded(worker=self.name, version=version, seconds=seconds, life=life)
        await self.membership.report(loaded, "reporting a loaded version")

    async def _watch_engine(self) -> None:
        """Raises `EngineError` when the engine stalls."""
        stall_s = self.config.rollout.stall_s
        why = f"the engine has work but made no token for {stall_s:g} s (rollout.stall_s): ending it"
        await stopwatch.watch_progress(self._engine_state, stall_s, errors.EngineError(why))

    def _engine_state(self) -> object:
        """Changes with every token and every change of weights; None if the engine has nothing to do."""
        progress = self.engine.progress()
        if not progress or self._weights.busy or self._weights.asleep:
            return None
        return self.engine.version, self._reporter.stored, sorted((str(id), count) for id, count in progress.items())
