"""The rollout worker: takes samples, lets the engine write them, stores them, then tells the broker.

A sample is in `_holding` from the moment it is taken until the broker has acknowledged it as generated, or given
back. Storing and telling twice do no harm, so both are repeated until they are acknowledged; store, broker and
trainer may restart meanwhile. What is being written is saved as it grows (`saving`), so whoever goes on after us goes
on from there; a worker that is told to stop saves the rest and leaves. Nothing is sampled before the first published
version is loaded. When the engine dies, or stalls, the worker ends with `EngineError`: whoever supervises it starts
it again, clean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from rhymed import errors, messages
from rhymed.config import Config
from rhymed.inputs.render import load_renderer
from rhymed.run.layout import RunLayout
from rhymed.service import stall
from rhymed.service.logline import cause
from rhymed.service.retry import retry
from rhymed.service.service import Service
from rhymed.text import counted
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import NewSample, StoreClient
from rhymed_workers.engines.base import Engine, Output
from rhymed_workers.engines.build import build_engine
from rhymed_workers.membership import Membership
from rhymed_workers.rollout.activity import Timesheet
from rhymed_workers.rollout.download import Fetcher
from rhymed_workers.rollout.generation import Hand, Writing
from rhymed_workers.rollout.history import Recall
from rhymed_workers.rollout.partials import Saving, new_sample
from rhymed_workers.rollout.prompts import PromptCache
from rhymed_workers.rollout.weights import Loading

log = logging.getLogger(__name__)

BATCH = 256  # samples in one message


class RolloutWorker(Service):
    """`name` is unique in the run. `engine` is given in tests; otherwise the configuration names it."""

    def __init__(self, config: Config, where: RunLayout, name: str, engine: Engine | None = None) -> None:
        super().__init__(name)
        self._config = config
        self._where = where
        self._engine = engine
        self._holding: dict[messages.SampleId, Hand] = {}
        self._finished: asyncio.Queue[Hand] = asyncio.Queue()
        self._reported = asyncio.Event()
        self._stored = 0
        self._sheet = Timesheet()
        self._saving: Saving | None = None
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._store = StoreClient(self._where.store, self.name, self._where.keys("rollout"))
        self._closing.callback(self._store.close)
        self._fetcher = Fetcher(self.name, keys=self._where.keys("rollout"))
        self._closing.callback(self._fetcher.close)
        self.spawn(self._work())  # beside: an engine takes long to start, and a signal must not wait for it

    async def _work(self) -> None:
        if self._engine is None:
            self._engine = await asyncio.to_thread(build_engine, self._config)
        self._closing.push_async_callback(self._engine.close)
        # One after the other: two threads that import transformers at once meet half-imported modules.
        render = await asyncio.to_thread(load_renderer, self._config)
        await self._engine.open()
        self._sheet.account = self._engine.seconds
        self._prompts = PromptCache(self._rows, render)
        self._closing.callback(self._prompts.close)
        self._recall = self._make_recall()
        if self._recall is not None:
            self._closing.callback(self._recall.close)
        self._writing = Writing(self._config, self._engine, self._beginning, self._park)
        self._loading = Loading(self.name, self._engine, self._fetcher, self._set_back, self._loaded, self._sheet)
        keys = self._where.keys("rollout").to("broker")
        link = Client(
            self._where.broker, self.name, peer="broker", accepts=messages.ToRollout, handler=self._handle, keys=keys
        )
        self._closing.callback(link.close)
        self._membership = Membership(link, self._join, self._heartbeat)
        self._closing.push_async_callback(self._membership.leave, self.name)
        for work in (self._membership.run(), self._loading.run(), self._report()):
            self.spawn(work)
        stall_s = self._config.rollout.stall_s
        stuck = errors.EngineError(
            f"the engine has work, and has made no token for {stall_s:g} s (rollout.stall_s): it is ended"
        )
        self.spawn(stall.watch(self._state, stall_s, stuck))
        if self._config.carries and (every_s := self._config.rollout.save_every_s):
            self._saving = Saving(every_s, self._store, self._writing, self._holding.values)
            self.spawn(self._saving.run())

    async def drain(self) -> None:
        """What is being written is saved, so that others go on with it; what is done is reported."""
        if self._saving is not None:
            await self._saving.save()
        while any(hand.output is not None for hand in self._holding.values()):
            self._reported.clear()
            await self._reported.wait()
        if self._saving is not None:  # what has come meanwhile
            await self._saving.save()

    async def close(self) -> None:
        await self._closing.aclose()

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine is there before anybody can ask for it"
        return self._engine

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.Generate():
                if self.stopping:
                    raise errors.PeerGone(f"{self.name} leaves: it takes no more samples")
                begun = set(message.begun)
                fresh = [id for id in message.samples if id not in self._holding]
                for id in fresh:
                    hand = self._holding[id] = Hand(id, time.monotonic(), id in begun)
                    self.spawn(self._sample(hand))
                if fresh:
                    log.info(
                        "takes %s, first %s", counted(len(fresh), "sample"), fresh[0], extra=cause("taken", fresh)
                    )
            case messages.Cancel():
                for id in message.samples:
                    if id in self._holding:
                        self._holding.pop(id).cancelled = True
                    self.engine.cancel(id)
                gone = counted(len(message.samples), "sample")
                log.info("forgets %s, first %s", gone, message.samples[0], extra=cause("cancelled", message.samples))
                await self._writing.stir()
            case messages.Release():
                away, more = counted(len(message.samples), "sample"), cause("released", message.samples)
                log.info("is to hand over %s, first %s", away, message.samples[0], extra=more)
                for id in message.samples:
                    taken = self._holding.get(id)
                    if taken is not None and taken.output is None:
                        taken.released = True
                        self.engine.cancel(id)
                await self._writing.stir()
            case messages.LoadVersion():
                self._loading.want(message)
            case messages.Finish():
                log.info("%s: the run is over: %s", self.name, message.reason)
                self._membership.dismissed()
                self.stop()
            case _:
                raise errors.MalformedMessage(f"a rollout worker does not take {type(message).__name__}")
        return DONE

    # -- belonging to the run -----------------------------------------------------------------------------------

    def _join(self) -> messages.Join:
        return messages.Join(
            role="rollout",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._config.rollout.max_concurrency,
            version=self.engine.version,
            life=self._loading.life,
            holding=list(self._holding),
        )

    def _heartbeat(self) -> messages.Heartbeat:
        now, progress = time.monotonic(), self.engine.progress()
        held = [
            messages.Holding(
                id=hand.id,
                tokens=hand.tokens or progress.get(hand.id, 0),
                parked=hand.parked,
                seconds=now - hand.since,
            )
            for hand in self._holding.values()
        ]
        stats = {**self.engine.stats(), **self._loading.timings, **self._sheet.stats()}
        stats["rollout/stored"] = float(self._stored)
        phase = "update" if self._loading.busy else "decode" if held else "idle"
        version, life = self.engine.version, self._loading.life
        return messages.Heartbeat(
            worker=self.name, version=version, life=life, phase=phase, holding=held, stats=stats
        )

    # -- the way of a sample ------------------------------------------------------------------------------------

    async def _rows(self, prompts: Sequence[str]) -> list[Any]:
        rows: list[Any] = await retry(lambda: self._store.get_prompts(prompts), "reading prompts")
        return rows

    def _make_recall(self) -> Recall | None:
        drafts = self._config.drafts
        if self._config.rollout.engine != "vllm" or drafts.method == "none" or not drafts.responses:
            return None
        return Recall(lambda prompt, step: self._store.history(prompt, step, drafts.responses), self.engine.remember)

    async def _sample(self, hand: Hand) -> None:
        try:
            hand.prompt = await self._prompts.tokens(hand.id.prompt)
            if self._recall is not None:
                self._recall.bring(hand.id, hand.prompt)
            await self._loading.ready.wait()
            output = await self._writing.write(hand)
        except (errors.DataError, errors.UnknownSample) as error:
            await self._give_back(hand, str(error))
            return
        except errors.EngineError:
            if self.stopping:
                return  # the signal that ends us ends the engine as well
            raise
        if output is None or self._holding.get(hand.id) is not hand:
            return  # cancelled
        if hand.released and output.finish_reason == "abort":
            await self._hand_over(hand, output)
        elif output.finish_reason == "abort":
            await self._give_back(hand, "the engine aborted it", retry=True)
        else:
            hand.output = output
            self._finished.put_nowait(hand)

    async def _beginning(self, id: messages.SampleId) -> Sequence[int]:
        """What was written of it before, here or elsewhere; nothing, where the store has none."""
        if not self._config.carries:
            return ()
        found = await retry(lambda: self._store.get_partials([id]), "reading a sample's beginning")
        tokens = found[id].tolist() if id in found else ()
        more = cause("begun", [id], tokens=len(tokens))
        log.info("sample %s begins with %d tokens from the store", id, len(tokens), extra=more)
        return tokens

    async def _park(self, id: messages.SampleId) -> None:
        await self._membership.report(
            messages.Ahead(worker=self.name, samples=[id]), "reporting a sample written ahead"
        )

    async def _hand_over(self, hand: Hand, output: Output) -> None:
        """To another worker, with what it has."""
        if len(output.tokens):
            await retry(lambda: self._store.put_partials({hand.id: (0, output.tokens)}), "storing a beginning")
        back = messages.GiveBack(worker=self.name, samples=[hand.id], reason="moved", moved=True)
        await self._membership.report(back, "handing a sample over")
        more = cause("moved", [hand.id], tokens=len(output.tokens))
        log.info("sample %s is handed over with %d tokens", hand.id, len(output.tokens), extra=more)
        self._forget([hand])

    async def _give_back(self, hand: Hand, reason: str, *, retry: bool = False) -> None:
        if self._holding.get(hand.id) is not hand:
            return
        more = cause("returned", [hand.id], reason=reason)
        log.warning("%s: sample %s given back: %s", self.name, hand.id, reason, extra=more)
        back = messages.GiveBack(worker=self.name, samples=[hand.id], reason=reason, retry=retry)
        await self._membership.report(back, "giving a sample back")
        self._forget([hand])

    async def _report(self) -> None:
        while True:
            hands = [await self._finished.get()]
            while len(hands) < BATCH and not self._finished.empty():
                hands.append(self._finished.get_nowait())
            await self._deliver(hands)
            self._forget(hands)

    async def _deliver(self, hands: Sequence[Hand]) -> None:
        """Where the store has an earlier record, of another worker or life, that one is what is reported."""
        told = await self.engine.drafting([hand.id for hand in hands])
        samples = [new_sample(hand, one) for hand, one in zip(hands, told, strict=True)]
        earlier = await retry(lambda: self._store.put_samples(samples), "storing samples")
        self._stored += len(samples)
        self._tell_of(samples, [info.id for info in earlier])
        infos = {sample.info.id: sample.info for sample in samples} | {info.id: info for info in earlier}
        generated = messages.Generated(worker=self.name, samples=list(infos.values()))
        await self._membership.report(generated, "reporting samples")

    def _tell_of(self, samples: Sequence[NewSample], earlier: Sequence[messages.SampleId]) -> None:
        """One line for all that the store has acknowledged."""
        infos = [sample.info for sample in samples]
        tokens = [info.length for info in infos]
        accepted = [0 if one.drafted is None else int(one.drafted.sum()) for one in samples]
        more = cause("stored", [info.id for info in infos], tokens=tokens, accepted=accepted)
        log.info(
            "%s written and stored, %s, %d of them drafts, first %s",
            counted(len(infos), "sample"), counted(sum(tokens), "token"), sum(accepted), infos[0].id, extra=more,
        )  # fmt: skip
        if earlier:
            log.info("the store had a record of %s", counted(len(earlier), "sample"), extra=cause("kept", earlier))

    def _forget(self, hands: Sequence[Hand]) -> None:
        for hand in hands:
            if self._holding.get(hand.id) is hand:
                del self._holding[hand.id]
        self._reported.set()

    # -- the engine ---------------------------------------------------------------------------------------------

    def _set_back(self) -> None:
        self._writing.set_back(self._holding.values())

    async def _loaded(self, version: int, seconds: float) -> None:
        await self._writing.stir()
        await self._membership.report(
            messages.Loaded(worker=self.name, version=version, seconds=seconds), "reporting a loaded version"
        )

    def _state(self) -> object:
        """Changes with every token and every change of weights; None: the engine has nothing to do."""
        progress = self.engine.progress()
        if not progress or self._loading.busy:
            return None
        return self.engine.version, self._stored, sorted((str(id), tokens) for id, tokens in progress.items())
