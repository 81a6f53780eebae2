"""The trainer's process: receives whole steps by reference, trains, publishes the next version, writes checkpoints.

All of the learner's work runs on one thread, in order, so heartbeats continue. A step is fetched and checked (before
the broker's request is answered), trained, published, reported, and checkpointed while the next one is trained. A
repeated request for a trained step is reported again. Broker and store may restart at any time. Does not know how a
learner learns; `lineage` records what every step was trained on and is part of each checkpoint.
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
from typing import TYPE_CHECKING, Any, TypeVar

from rhymed import messages
from rhymed.config import Config
from rhymed.errors import MalformedMessage, RhymedError, TrainerError
from rhymed.run.layout import RunLayout
from rhymed.service import stall
from rhymed.service.activities import stats_of
from rhymed.service.logline import cause
from rhymed.service.service import Service
from rhymed.service.stopwatch import Stopwatch
from rhymed.text import trained_line
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import StoredSample
from rhymed_store.shards.client import connect
from rhymed_workers.membership import member
from rhymed_workers.trainer.base import Learner, restore
from rhymed_workers.trainer.intake.early import Early
from rhymed_workers.trainer.intake.fetch import Fetch, Fetched
from rhymed_workers.trainer.lineage import Lineage
from rhymed_workers.trainer.publish import publisher_for
from rhymed_workers.trainer.samples import Progress
from rhymed_workers.trainer.saving.checkpoints import Checkpoints, Finish
from rhymed_workers.trainer.saving.writer import only_writer
from rhymed_workers.trainer.tokenstats.keep import Keeper
from rhymed_workers.weights.server import WeightsServer

if TYPE_CHECKING:
    from rhymed_workers.trainer.gang.gang import Gang

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LAST_REPORTS_S = 10.0  # for reports that are not acknowledged when the run is over


class TrainerService(Service):
    def __init__(self, config: Config, layout: RunLayout, name: str = "") -> None:
        super().__init__(name or f"trainer@{socket.gethostname()}:{os.getpid()}")
        self._config, self._layout = config, layout
        self._thread = ThreadPoolExecutor(1, "learner")
        self._phase = "start"
        self._seconds = Stopwatch("wait")
        self._life = secrets.token_hex(8)  # distinguishes our reports and weights from those of an earlier process
        self._step: asyncio.Task[Fetched] | None = None  # being fetched, or fetched and being trained
        self._turn = asyncio.Lock()  # of a step, a group, or a checkpoint until it is copied
        self._idle = asyncio.Event()
        self._idle.set()
        self._run_steps = 0  # of the whole run, by the broker's last order; 0: unknown
        self._version = 0  # published; the learner's own count is ahead while a step is being published
        self._last: messages.Trained | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._checkpoints = Checkpoints(layout, config.trainer.keep_checkpoints, self._report_checkpoints)
        self._over = False  # the broker has ended the run
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._closing.enter_context(only_writer(self._layout.folder))
        self._gang = self._start_gang()
        self._learner, self._lineage = await self._on_thread(self._load, "load")
        self._publisher = publisher_for(self._config, self._layout.folder / "weights", self._learner.dtype)
        self._closing.callback(self._publisher.close)
        await self._publish()
        self.spawn(self._publisher.replace_lost(self._learner, self._on_thread))
        keys, address = self._layout.keys("trainer"), self._layout.weights
        self._weights = WeightsServer(self._layout.listens(address), self._publisher, keys=keys)
        self._announced = address if self._layout.bind else self._weights.address
        self._closing.callback(self._weights.close)
        self._store = connect(self._layout, self.name, keys)
        self._closing.callback(self._store.close)
        self._fetch = Fetch(self._store, self._learner, self._seconds)
        self._early = Early(self._fetch, self._turn, self._waits_for, self._begin)
        self._keeper = Keeper(self._store, lambda work: self.spawn(work, vital=False))
        keys = keys.to("broker")
        link = Client(
            self._layout.broker, self.name, peer="broker", accepts=messages.ToTrainer, handler=self._handle, keys=keys
        )
        self._closing.callback(link.close)
        self._phase = "idle"
        self._membership = member(link, self._join, self._heartbeat, self._config, "trainer", RhymedError)
        self._closing.push_async_callback(self._membership.leave, self.name)
        self.spawn(self._membership.run())
        stall_s = self._config.trainer.stall_s
        why = f"no progress for {stall_s:g} s (trainer.stall_s): it begins again at the newest checkpoint"
        self.spawn(stall.watch(self._progress, stall_s, TrainerError(why)))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._checkpoints.close()
        await self._closing.aclose()

    def _start_gang(self) -> Gang | None:
        """The other ranks, if there are any. One that dies ends this process."""
        if self._config.trainer.world == 1:
            return None
        from rhymed_workers.trainer.gang.gang import Gang

        gang = Gang(self._config, self._life)
        self._closing.callback(gang.close)
        self.spawn(gang.watch())
        return gang

    def _load(self) -> tuple[Learner, Lineage]:
        """From the newest intact checkpoint, or from the beginning if there is no checkpoint."""
        newest = self._checkpoints.resume()
        learner = restore(self._config, newest.folder if newest else None, self._gang)
        lineage = Lineage.load(newest.folder, learner.steps) if newest else Lineage()
        log.info("%s, %d steps trained, from %s", learner, learner.steps, newest or "the beginning")
        return learner, lineage

    def _progress(self) -> object:
        """Changes with every micro-batch and with what is written of a checkpoint; None if there is nothing to do."""
        idle, written = self._idle.is_set() and not self._turn.locked(), self._checkpoints.progress
        return None if idle and written is None else (self._version, self._phase, written)

    async def _on_thread(self, work: Callable[[], Result], activity: str) -> Result:
        """Run on the learner's thread; the time there counts as this activity."""

        def timed() -> Result:
            with self._seconds.during(activity):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def _join(self) -> messages.Join:
        return messages.Join(
            role="trainer",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            weights=self._announced,
            life=self._life,
            training=self._training(),
        )

    def _heartbeat(self) -> messages.Heartbeat:
        stats = stats_of("trainer", self._seconds.read())
        return messages.Heartbeat(
            worker=self.name, version=self._version, phase=self._phase, stats=stats, training=self._training()
        )

    def _training(self) -> int:
        """The step that it has; -1: none."""
        return -1 if self._step is None else self._version

    def _report(self, message: messages.Message) -> None:
        """In the background, until the broker has acknowledged it."""
        report = self.spawn(self._membership.report(message, f"reporting {type(message).__name__}"))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.BeginGroups():
                self.spawn(self._early.take(message))
            case messages.TrainStep():
                await self._take(message)
            case messages.Finish():
                self.spawn(self._finish(message.reason))
            case _:
                raise MalformedMessage(f"the trainer does not take {type(message).__name__}")
        return DONE

    async def _take(self, order: messages.TrainStep) -> None:
        """Returns when the step's samples are fetched and valid, or the step is trained already. Raises otherwise."""
        steps = self._version
        if order.step < steps:
            last = self._last if self._last and self._last.step == order.step else None
            self._report(last or messages.Trained(worker=self.name, step=order.step, metrics={}, life=self._life))
            return
        if order.step > steps:
            raise TrainerError(f"step {order.step + 1} cannot be trained: {steps} are trained, {steps + 1} is next")
        if self._step is None:
            self._run_steps = order.steps
            self._idle.clear()
            whole = self._fetch.samples(order.step, order.samples, self._stage("fetch", ends=False))
            self._step = asyncio.get_running_loop().create_task(whole)
            self._step.add_done_callback(self._fetched)
        await asyncio.shield(self._step)

    def _waits_for(self, step: int) -> bool:
        return step == self._version and self._step is None and not self._over

    async def _begin(self, step: int, group: list[StoredSample]) -> None:
        def begin() -> None:
            self._publisher.withdraw()  # the memory is for training now
            self._learner.begin(step, group, self._stage("overlap"))

        await self._on_thread(begin, "train")
        self._phase = "idle" if self._step is None else self._phase

    def _stage(self, name: str, *, ends: bool = True) -> Progress:
        """Shows a part of a step as the phase. `ends`: raises when the process stops."""

        def progress(done: int, total: int) -> None:
            if self.stopping and ends:
                raise TrainerError("stopped in the middle of a step, which will be trained again")
            self._phase = f"{name} {done}/{total}"

        return progress

    def _fetched(self, task: asyncio.Task[Fetched]) -> None:
        if task.cancelled() or task.exception():
            self._step, self._phase = None, "idle"
            self._idle.set()
        elif not self.stopping:
            self.spawn(self._train(task.result()))

    async def _train(self, fetched: Fetched) -> None:
        def train() -> dict[str, float]:
            self._publisher.withdraw()  # the memory is for training now
            metrics = self._learner.train(fetched.samples, self._stage("train"), self._run_steps)
            self._lineage.add(step, fetched.samples, self._learner.digest())
            return metrics

        step = self._version
        async with self._turn:
            self._phase = "train"
            metrics = await self._on_thread(train, "train")
            self._phase = "publish"
            metrics |= fetched.metrics | {"timing_s/publish": await self._publish()}
        self._last = messages.Trained(worker=self.name, step=step, metrics=metrics, life=self._life)
        self._step = None
        more = cause("trained", [sample.info.id for sample in fetched.samples], step=step)
        log.info("step %d trained: %s", step + 1, trained_line(metrics), extra=more)
        self._report(self._last)
        self._keeper.keep(step, self._learner.token_stats)
        if self._version % self._config.trainer.checkpoint_every == 0:
            await self._save()
        if self._step is None:
            self._phase = "idle"
            self._idle.set()

    async def _publish(self) -> float:
        """Returns the seconds that it took."""
        started = time.perf_counter()
        published = await self._on_thread(lambda: self._publisher.publish_from(self._learner), "publish")
        self._version = published.version
        return time.perf_counter() - started

    async def _save(self) -> None:
        """Write a checkpoint and report it. The next step waits only for a copy, see `trainer.async_checkpoints`."""
        started, copy = time.perf_counter(), self._config.trainer.async_checkpoints

        def take(folder: Path) -> Finish:
            return self._lineage.before(self._learner.snapshot(folder, copy=copy), folder)

        async with self._turn:
            steps, self._phase = self._learner.steps, "checkpoint"
            await self._checkpoints.free()
            write = await self._on_thread(lambda: self._checkpoints.begin(steps, take), "checkpoint")
            writing = self._checkpoints.finish(steps, write, time.perf_counter() - started)
            if not copy:
                with self._seconds.during("checkpoint"):
                    await writing
                return
        self.spawn(writing)

    def _report_checkpoints(self, oldest: int, newest: int) -> None:
        self._report(messages.Checkpointed(worker=self.name, step=oldest, newest=newest, life=self._life))

    async def _finish(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        log.info("the run is over: %s", reason)
        await self._idle.wait()
        await self._checkpoints.written()
        if self._checkpoints.newest != self._version:
            await self._save()
            await self._checkpoints.written()
        await self._checkpoints.report()  # again: a broker may have restarted
        if self._reports:
            await asyncio.wait(self._reports, timeout=LAST_REPORTS_S)
        await self._keeper.written(LAST_REPORTS_S)
        self.stop()
