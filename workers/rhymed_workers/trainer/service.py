"""The trainer's process: takes whole steps by reference, trains, publishes the next version, checkpoints.

All of the learner's work runs on one thread, in the order it was asked for, so heartbeats go on. A step goes: fetch
and check (before the broker is told that it is taken), train, publish, tell, and only then checkpoint. Being told the
same thing twice does no harm: a step that is trained is answered, not trained again. Broker and store may restart at
any time. What learning is, and whether it takes torch, is the learner's affair; what every step was trained on is
written down in `lineage`, which goes into each checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rhymed.config import Config
from rhymed.errors import MalformedMessage, RhymedError, TrainerError
from rhymed.messages import (
    Checkpointed,
    Finish,
    Heartbeat,
    Join,
    Message,
    SampleId,
    ToTrainer,
    Trained,
    TrainStep,
)
from rhymed.run import checkpoint
from rhymed.run.layout import RunLayout
from rhymed.service import stall
from rhymed.service.activities import stats_of
from rhymed.service.logline import cause
from rhymed.service.service import Service
from rhymed.service.stopwatch import Stopwatch
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.membership import Membership
from rhymed_workers.trainer.base import Learner, restore
from rhymed_workers.trainer.lineage import Lineage
from rhymed_workers.trainer.publish import Publisher, WeightsServer

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LAST_WORDS_S = 10.0  # for what is not acknowledged when the run is over
FETCH_S = 30.0  # for the samples of one request
FETCHED = 256  # samples in one request: a step of any size is read, as long as the store answers


class TrainerService(Service):
    def __init__(self, config: Config, places: RunLayout, name: str = "") -> None:
        super().__init__(name or f"trainer@{socket.gethostname()}:{os.getpid()}")
        self._config, self._places = config, places
        self._thread = ThreadPoolExecutor(1, "learner")
        self._phase = "start"
        self._seconds = Stopwatch("wait")
        self._life = secrets.token_hex(8)  # what an earlier process told or published is not ours
        self._step: asyncio.Task[list[StoredSample]] | None = None  # fetching, or fetched and being trained
        self._idle = asyncio.Event()
        self._idle.set()
        self._version = 0  # published; the learner's own count is ahead while a step is being published
        self._last: Trained | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._saved = 0  # steps in the newest checkpoint
        self._over = False  # we were told that the run is
        self._closing = contextlib.AsyncExitStack()

    # -- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._learner, self._lineage = await self._aside(self._load, "load")
        self._publisher = Publisher(self._places.folder / "weights", self._learner.dtype)
        self._closing.callback(self._publisher.close)
        await self._publish()
        keys = self._places.keys("trainer")
        address = self._places.weights
        self._weights = WeightsServer(self._places.listens(address), self._publisher, keys=keys)
        self._announced = address if self._places.bind else self._weights.address
        self._closing.callback(self._weights.close)
        self._store = StoreClient(self._places.store, self.name, keys)
        self._closing.callback(self._store.close)
        link = Client(
            self._places.broker,
            self.name,
            peer="broker",
            accepts=ToTrainer,
            handler=self._handle,
            keys=keys.to("broker"),
        )
        self._closing.callback(link.close)
        self._phase = "idle"
        self._membership = Membership(link, self._join, self._heartbeat, retry_on=RhymedError)
        self._closing.push_async_callback(self._membership.leave, self.name)
        self.spawn(self._membership.run())
        stall_s = self._config.trainer.stall_s
        stuck = TrainerError(f"no progress for {stall_s:g} s (trainer.stall_s): the step will be trained again")
        self.spawn(stall.watch(self._progress, stall_s, stuck))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)  # a half-written checkpoint counts for nothing
        await self._closing.aclose()

    def _load(self) -> tuple[Learner, Lineage]:
        """From the newest checkpoint that is whole; from the beginning if there is none at all."""
        found = checkpoint.resume(self._places.checkpoints)
        learner = restore(self._config, found.folder if found else None)
        lineage = Lineage.load(found.folder, learner.steps) if found else Lineage()
        self._saved = found.step if found else 0
        log.info("%s, %d steps trained, from %s", learner, learner.steps, found or "the beginning")
        return learner, lineage

    def _progress(self) -> object:
        """Changes with every micro-batch; None: there is nothing to do."""
        return None if self._idle.is_set() else (self._version, self._phase)

    async def _aside(self, work: Callable[[], Result], activity: str) -> Result:
        """On the learner's thread, counted as this activity from when it begins there."""

        def timed() -> Result:
            with self._seconds.during(activity):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    # -- belonging to the run -----------------------------------------------------------------------------------

    def _join(self) -> Join:
        return Join(
            role="trainer",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            weights=self._announced,
            life=self._life,
        )

    def _heartbeat(self) -> Heartbeat:
        stats = stats_of("trainer", self._seconds.read())
        return Heartbeat(worker=self.name, version=self._version, phase=self._phase, stats=stats)

    def _report(self, message: Message) -> None:
        """In the background, until the broker has acknowledged it."""
        report = self.spawn(self._membership.report(message, f"reporting {type(message).__name__}"))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    # -- a step -------------------------------------------------------------------------------------------------

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        match message:
            case TrainStep():
                await self._take(message)
            case Finish():
                self.spawn(self._finish(message.reason))
            case _:
                raise MalformedMessage(f"the trainer does not take {type(message).__name__}")
        return DONE

    async def _take(self, order: TrainStep) -> None:
        """Returns when the step's samples are here and fit, or it is trained already. Raises why it cannot be."""
        steps = self._version
        if order.step < steps:
            known = self._last if self._last and self._last.step == order.step else None
            self._report(known or Trained(worker=self.name, step=order.step, metrics={}, life=self._life))
            return
        if order.step > steps:
            raise TrainerError(
                f"step {order.step + 1} cannot be trained: {steps} steps are trained, {steps + 1} is the next"
            )
        if self._step is None:
            self._idle.clear()
            self._step = asyncio.get_running_loop().create_task(self._fetch(order.step, order.samples))
            self._step.add_done_callback(self._fetched)
        await asyncio.shield(self._step)

    async def _fetch(self, step: int, ids: list[SampleId]) -> list[StoredSample]:
        started = time.perf_counter()
        more, samples = self._learner.reads_logprobs, list[StoredSample]()
        for start in range(0, len(ids), FETCHED):
            self._phase = f"fetch {start}/{len(ids)}"
            part = ids[start : start + FETCHED]
            with self._seconds.during("load"):
                samples += await self._store.get_samples(part, logprobs=more, prompt_tokens=more, deadline_s=FETCH_S)
        self._learner.check(step, samples)
        self._fetch_s = time.perf_counter() - started
        return samples

    def _fetched(self, task: asyncio.Task[list[StoredSample]]) -> None:
        if task.cancelled() or task.exception():
            self._step, self._phase = None, "idle"
            self._idle.set()
        elif not self.stopping:
            self.spawn(self._train(task.result()))

    async def _train(self, samples: list[StoredSample]) -> None:
        def progress(done: int, total: int) -> None:
            if self.stopping:
                raise TrainerError("stopped in the middle of a step, which will be trained again")
            self._phase = f"train {done}/{total}"

        def train() -> dict[str, float]:
            metrics = self._learner.train(samples, progress)
            self._lineage.add(step, samples, self._learner.digest())
            return metrics

        step, self._phase = self._version, "train"
        metrics = await self._aside(train, "train")
        self._phase = "publish"
        metrics |= {"timing_s/fetch": self._fetch_s, "timing_s/publish": await self._publish()}
        self._last = Trained(worker=self.name, step=step, metrics=metrics, life=self._life)
        self._step = None
        told = " ".join(f"{key}={value:.4g}" for key, value in sorted(metrics.items()))
        log.info("step %d: %s", step + 1, told, extra=cause("trained", [one.info.id for one in samples], step=step))
        self._report(self._last)
        if self._version % self._config.trainer.checkpoint_every == 0:
            await self._save()
        if self._step is None:
            self._phase = "idle"
            self._idle.set()

    async def _publish(self) -> float:
        """Seconds it took."""
        started = time.perf_counter()
        learner, version = self._learner, self._learner.steps
        await self._aside(lambda: self._publisher.publish(version, learner.tensors().items()), "publish")
        self._version = version
        return time.perf_counter() - started

    async def _save(self) -> None:
        """Write and tell. The next step waits for it on the learner's thread, the workers do not.

        Told is the oldest one that is kept: should the newest be damaged, that is where the run goes on, and what the
        store has of the steps after it, log-probs too, is needed again.
        """
        settings, started = self._config.trainer, time.perf_counter()
        self._phase = "checkpoint"

        def fill(folder: Path) -> None:
            self._learner.save(folder)
            self._lineage.save(folder)

        where, steps = self._places.checkpoints, self._learner.steps

        keep = settings.keep_checkpoints
        found = await self._aside(lambda: checkpoint.save(where, steps, fill, keep), "checkpoint")
        self._saved = found.step
        log.info("checkpoint %s in %.1f s", found.folder, time.perf_counter() - started)
        await self._tell_saved()

    async def _tell_saved(self) -> None:
        kept = await self._aside(lambda: checkpoint.checkpoints_in(self._places.checkpoints), "checkpoint")
        oldest = kept[0].step if kept else 0
        self._report(Checkpointed(worker=self.name, step=oldest, newest=self._saved, life=self._life))

    async def _finish(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        log.info("the run is over: %s", reason)
        await self._idle.wait()
        if self._saved != self._version:
            await self._save()
        else:
            await self._tell_saved()  # the broker may have died since: it asks for no less than all steps
        if self._reports:
            await asyncio.wait(self._reports, timeout=LAST_WORDS_S)
        self.stop()
