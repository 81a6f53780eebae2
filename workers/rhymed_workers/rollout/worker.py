"""The rollout worker: receives samples, lets the engine generate them, stores them, then reports them to the broker.

A sample is in `_active` from its assignment until the broker has acknowledged it as generated or given back. Store,
broker and trainer may restart meanwhile. Running samples are saved as they grow (`partials`), so the next worker
continues where this one ended; a worker that is stopped saves the rest and leaves. Nothing is sampled before the
first published version is loaded. If the engine dies or stalls, the worker ends with `EngineError`, and its
supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from rhymed import errors, messages
from rhymed.config import Config
from rhymed.run.layout import RunLayout
from rhymed.service import stall
from rhymed.service.logline import cause
from rhymed.service.retry import retry
from rhymed.service.service import Service
from rhymed.text import counted
from rhymed.wire.sockets import DONE, Client
from rhymed_store.shards.client import connect
from rhymed_workers.engines.base import Engine, sampling_for
from rhymed_workers.engines.build import build_engine
from rhymed_workers.membership import member
from rhymed_workers.rollout.activity import Timesheet
from rhymed_workers.rollout.ahead import turns_ahead
from rhymed_workers.rollout.generation import ActiveSample, Generation
from rhymed_workers.rollout.history import history_loader
from rhymed_workers.rollout.partials import PartialSaver
from rhymed_workers.rollout.prompts import contexts
from rhymed_workers.rollout.reports import Reporter
from rhymed_workers.rollout.turns import slots_of
from rhymed_workers.rollout.weights import WeightLoader
from rhymed_workers.weights.fetch import Fetcher, RelayOptions

log = logging.getLogger(__name__)


class RolloutWorker(Service):
    """`name` is unique in the run. Tests pass an `engine`; otherwise the configuration names it."""

    def __init__(self, config: Config, layout: RunLayout, name: str, engine: Engine | None = None) -> None:
        super().__init__(name)
        self._config = config
        self._layout = layout
        self._engine = engine
        self._active: dict[messages.SampleId, ActiveSample] = {}
        self._timesheet = Timesheet()
        self._saver: PartialSaver | None = None
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._store = connect(self._layout, self.name, self._layout.keys("rollout"))
        self._closing.callback(self._store.close)
        relay = RelayOptions(self._config.net.relay, self._layout.bind)
        self._fetcher = Fetcher(self.name, keys=self._layout.keys("rollout"), relay=relay)
        self._closing.callback(self._fetcher.close)
        self.spawn(self._start())  # an engine takes long to start, and a stop must not wait for it

    async def _start(self) -> None:
        colocated = self._config.schedule.colocate
        await self._start_engine(opened=not colocated)
        self._generation = Generation(
            self.engine,
            functools.partial(sampling_for, self._config.rollout, self._config.eval, self._config.run.seed),
            self._config.schedule.max_staleness,
            self._read_partial,
            self._report_parked,
        )
        interrupt = functools.partial(self._generation.interrupt, self._active.values())
        self._weights = WeightLoader(
            self.name,
            self.engine,
            self._fetcher,
            interrupt,
            self._report_loaded,
            self._timesheet,
            self._open_engine,
            asleep=colocated,
        )
        keys = self._layout.keys("rollout").to("broker")
        link = Client(
            self._layout.broker, self.name, peer="broker", accepts=messages.ToRollout, handler=self._handle, keys=keys
        )
        self._closing.callback(link.close)
        self._membership = member(link, self._join, self._heartbeat, self._config, "rollout")
        self._closing.push_async_callback(self._membership.leave, self.name)
        if colocated:  # who leaves has freed the GPU
            self._closing.push_async_callback(self.engine.close)
        self._reporter = Reporter(
            self.name, self.engine, self._store, self._membership, self._active, turns=self._config.environment.active
        )
        self._generation.ahead = await self._closing.enter_async_context(turns_ahead(self._config, self._read_rows))
        for work in (self._membership.run(), self._weights.run(), self._reporter.run(), self._watch_engine()):
            self.spawn(work)
        if self._config.carries and (every_s := self._config.rollout.save_every_s):
            self._saver = PartialSaver(every_s, self._store, self._generation, self._active.values)
            self.spawn(self._saver.run())

    async def _start_engine(self, *, opened: bool) -> None:
        """`opened`: else it is opened when it is first ordered to wake, for the trainer may be using its GPUs."""
        if self._engine is None:
            self._engine = await asyncio.to_thread(build_engine, self._config, self._read_rows)
        self._closing.push_async_callback(self._engine.close)
        # One after the other: two threads that import transformers at the same time see half-imported modules.
        self._contexts = await contexts(self._config, self._store, self._read_rows)
        self._closing.callback(self._contexts.close)
        if opened:
            await self._open_engine()
        self._history = history_loader(self._config, self._store, self.engine.remember)
        if self._history is not None:
            self._closing.callback(self._history.close)

    async def _open_engine(self) -> None:
        """Once."""
        if self._timesheet.engine_seconds is None:
            await self.engine.open()
            self._timesheet.engine_seconds = self.engine.seconds

    async def drain(self) -> None:
        """Save running samples, so that other workers continue them, and report finished ones."""
        if self._saver is not None:
            await self._saver.save()
        if self._active:
            await self._reporter.wait_until_reported()
        if self._saver is not None:  # tokens of the meantime
            await self._saver.save()

    async def close(self) -> None:
        await self._closing.aclose()

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine is started before it is used"
        return self._engine

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.Generate():
                self._accept(message)
            case messages.Cancel():
                await self._cancel(message.samples)
            case messages.Release():
                await self._release(message.samples)
            case messages.LoadVersion() | messages.Sleep():
                self._weights.want(message)
            case messages.Finish():
                log.info("%s: the run is over: %s", self.name, message.reason)
                self._membership.dismissed()
                self.stop()
            case _:
                raise errors.MalformedMessage(f"a rollout worker does not take {type(message).__name__}")
        return DONE

    def _accept(self, order: messages.Generate) -> None:
        if self.stopping:
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

    def _join(self) -> messages.Join:
        return messages.Join(
            role="rollout",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=slots_of(self._config),
            version=self.engine.version,
            life=self._weights.life,
            holding=list(self._active),
            asleep=self._weights.asleep and not self._weights.waking,
        )

    def _heartbeat(self) -> messages.Heartbeat:
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
            if self.stopping:
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

    async def _read_rows(self, prompts: Sequence[str]) -> list[Any]:
        rows: list[Any] = await retry(lambda: self._store.get_prompts(prompts), "reading prompts")
        return rows

    async def _read_partial(self, id: messages.SampleId) -> Sequence[int]:
        """The tokens that this or another worker has saved of it; empty if the store has none."""
        if not self._config.carries:
            return ()
        partials = await retry(lambda: self._store.get_partials([id]), "reading a partial sample")
        tokens = partials[id].tolist() if id in partials else ()
        more = cause("begun", [id], tokens=len(tokens))
        if len(tokens):  # of a sample in turns, the turn may only begin
            log.info("sample %s continues from %d tokens in the store", id, len(tokens), extra=more)
        return tokens

    async def _report_parked(self, id: messages.SampleId) -> None:
        await self._membership.report(messages.Ahead(worker=self.name, samples=[id]), "reporting a parked sample")

    async def _report_loaded(self, version: int | None, seconds: float) -> None:
        """None: it is asleep."""
        if version is None:
            await self._membership.report(messages.Asleep(worker=self.name, seconds=seconds), "reporting sleep")
            return
        await self._generation.notify()
        loaded = messages.Loaded(worker=self.name, version=version, seconds=seconds)
        await self._membership.report(loaded, "reporting a loaded version")

    async def _watch_engine(self) -> None:
        """Raises `EngineError` when the engine stalls."""
        stall_s = self._config.rollout.stall_s
        why = f"the engine has work but made no token for {stall_s:g} s (rollout.stall_s): ending it"
        await stall.watch(self._engine_state, stall_s, errors.EngineError(why))

    def _engine_state(self) -> object:
        """Changes with every token and every change of weights; None if the engine has nothing to do."""
        progress = self.engine.progress()
        if not progress or self._weights.busy or self._weights.asleep:
            return None
        return self.engine.version, self._reporter.stored, sorted((str(id), count) for id, count in progress.items())
