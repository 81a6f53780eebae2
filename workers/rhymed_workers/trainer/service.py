"""The trainer's process: receives whole steps by reference, trains, publishes the next version, writes checkpoints.

All of the learner's work runs on one thread, in order, so heartbeats continue. A step is fetched and checked (before
the broker's request is answered), trained, published, reported, and checkpointed while the next one is trained. A
repeated request for a trained step is reported again. Broker and store may restart at any time. Does not know how a
learner learns; `lineage` records what every step was trained on and is part of each checkpoint.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import RhymedError, TrainerError, Unstartable
from rhymed.core.messages import BeginGroups, SampleId
from rhymed.core.printable import line
from rhymed.core.run import checkpoint
from rhymed.core.run.layout import RunLayout, ids_of
from rhymed.core.service import stopwatch
from rhymed.core.service.logfile import cause
from rhymed.core.service.stopwatch import Stopwatch, stats_of
from rhymed.core.tasks import watched
from rhymed.core.text import trained_line
from rhymed.inputs.rows import Row
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.trainer.base import Learner, restore
from rhymed_workers.trainer.lineage import Lineage
from rhymed_workers.trainer.publish import Publisher, publisher_for
from rhymed_workers.trainer.samples import Progress, groups_of
from rhymed_workers.trainer.saving import Checkpoints, Finish, only_writer
from rhymed_workers.weights.server import WeightsServer
from rhymed_workers.worker import Work, Worker

if TYPE_CHECKING:
    from rhymed_workers.trainer.distributed.leader import Leader


# Samples of a step from the store, in parts, with all that the learner reads of them.
#
# `Fetch` reads a whole step, and `Early` its first complete groups.

log = logging.getLogger(__name__)

FETCH_S = 30.0  # for the samples of one request
FETCHED = 256  # samples in one request, so that a step of any size can be read in time


class Fetched(NamedTuple):
    samples: list[StoredSample]
    left_out: int
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        return {"timing_s/fetch": self.seconds, "actor/left_out": float(self.left_out)}


class Fetch:
    def __init__(self, store: StoreClient, learner: Learner, seconds: Stopwatch) -> None:
        self._store, self._learner, self._seconds = store, learner, seconds

    async def samples(
        self, step: int, ids: Sequence[SampleId], progress: Progress = lambda done, total: None
    ) -> Fetched:
        """Those that the learner may train on in this step. Raises what the store's client raises."""
        started = time.perf_counter()
        with_logprobs, samples = self._learner.reads_logprobs, list[StoredSample]()
        for start in range(0, len(ids), FETCHED):
            progress(start, len(ids))
            part = ids[start : start + FETCHED]
            with self._seconds.during("load"):
                samples += await self._store.get_samples(
                    part, logprobs=with_logprobs, prompt_tokens=with_logprobs, deadline_s=FETCH_S
                )
        samples = self._learner.allowed(step, samples)
        left_out = len(ids) - len(samples)
        samples = await self._with_rows(samples) if self._learner.reads_rows else samples
        return Fetched(samples, left_out, time.perf_counter() - started)

    async def _with_rows(self, samples: list[StoredSample]) -> list[StoredSample]:
        prompts, rows = list(dict.fromkeys(sample.info.id.prompt for sample in samples)), dict[str, Row]()
        for start in range(0, len(prompts), FETCHED):
            part = prompts[start : start + FETCHED]
            with self._seconds.during("load"):
                rows |= zip(part, await self._store.get_prompts(part, deadline_s=FETCH_S), strict=True)
        return [dataclasses.replace(sample, row=rows[sample.info.id.prompt]) for sample in samples]


# Groups of the next step on their way to the learner, one by one, until the whole step comes.
#
# Without torch: the trainer's service imports it.


class Early:
    def __init__(
        self,
        fetch: Fetch,
        turn: asyncio.Lock,
        wanted: Callable[[int], bool],
        compute: Callable[[int, list[StoredSample]], Awaitable[None]],
    ) -> None:
        """`turn`: is held while a group is computed. `wanted`: whether this step is the next one and not here yet."""
        self._fetch, self._turn, self._wanted, self._compute = fetch, turn, wanted, compute

    async def take(self, order: BeginGroups) -> None:
        """Groups that cannot be read are left to the step. Raises what `compute` raises."""
        if not self._wanted(order.step):
            return
        try:
            fetched = await self._fetch.samples(order.step, order.samples)
        except RhymedError as error:
            log.info("groups of step %d are not computed before the others: %s", order.step + 1, error)
            return
        for group in groups_of(fetched.samples).values():
            async with self._turn:
                if self._wanted(order.step):
                    await self._compute(order.step, group)


Result = TypeVar("Result")

LAST_REPORTS_S = 10.0  # for reports that are not acknowledged when the run is over


class LearnerThread:
    """All of the learner's work, in order. `seconds`: where the time goes."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "learner")
        self.seconds = Stopwatch("wait")

    async def run(self, work: Callable[[], Result], activity: str) -> Result:
        """The time on the thread counts as this activity."""

        def timed() -> Result:
            with self.seconds.during(activity):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class TrainerService(Worker):
    role, accepts, retry_on = "trainer", messages.ToTrainer, RhymedError

    def __init__(self, config: Config, layout: RunLayout, name: str = "") -> None:
        super().__init__(config, layout, name or f"trainer@{socket.gethostname()}:{os.getpid()}")
        self._thread = LearnerThread()
        self._life = secrets.token_hex(8)  # distinguishes our reports and weights from those of an earlier process

    async def open(self) -> None:
        self.closing.enter_context(only_writer(self.layout.folder))
        leader = self._start_ranks()
        learner, lineage, saved = await self._thread.run(lambda: self._load(leader), "load")
        publisher = publisher_for(self.config, self.layout.folder / "weights", learner.dtype)
        self.closing.callback(publisher.close)
        await self._thread.run(lambda: publisher.publish_from(learner), "publish")
        self.spawn(publisher.replace_lost(learner, self._thread.run))
        keys, address = self.layout.keys("trainer"), self.layout.weights
        weights = WeightsServer(self.layout.listens(address), publisher, keys=keys)
        self.closing.callback(weights.close)
        announced = address if self.layout.bind else weights.address
        training = Training(self, self._thread, self._life, learner, lineage, publisher, announced, saved)
        self.closing.callback(training.checkpoints.close)
        self.begin(training)
        stall_s = self.config.trainer.stall_s
        why = f"no progress for {stall_s:g} s (trainer.stall_s): it begins again at the newest checkpoint"
        self.spawn(stopwatch.watch_progress(training.progress, stall_s, TrainerError(why)))

    async def close(self) -> None:
        self._thread.close()
        await super().close()

    def _start_ranks(self) -> Leader | None:
        """The other ranks, if there are any. One that dies ends this process."""
        if self.config.trainer.world == 1:
            return None
        from rhymed_workers.trainer.distributed.leader import Leader

        leader = Leader(self.config, self._life)
        self.closing.callback(leader.close)
        self.spawn(leader.watch())
        return leader

    def _load(self, leader: Leader | None) -> tuple[Learner, Lineage, int]:
        """From the newest intact checkpoint, or from the beginning if there is none; and the steps in it."""
        newest = checkpoint.resume(self.layout.checkpoints, ids_of(self.layout.folder))
        try:
            learner = restore(self.config, newest.folder if newest else None, leader)
        except (RuntimeError, AssertionError) as error:  # torch's, of a device that it cannot use
            raise Unstartable(f"the model cannot be loaded for training: {line(str(error))}") from error
        lineage = Lineage.load(newest.folder, learner.steps) if newest else Lineage()
        log.info("%s, %d steps trained, from %s", learner, learner.steps, newest or "the beginning")
        return learner, lineage, newest.step if newest else 0


class Training(Work):
    def __init__(
        self,
        worker: Worker,
        thread: LearnerThread,
        life: str,
        learner: Learner,
        lineage: Lineage,
        publisher: Publisher,
        announced: str,
        saved: int,
    ) -> None:
        """`announced`: the address of the weights. `saved`: steps in the newest checkpoint."""
        super().__init__(worker)
        self._thread, self._life, self._announced = thread, life, announced
        self._learner, self._lineage, self._publisher = learner, lineage, publisher
        self._phase = "idle"
        self._step: asyncio.Task[Fetched] | None = None  # being fetched, or fetched and being trained
        self._turn = asyncio.Lock()  # of a step, a group, or a checkpoint until it is copied
        self._idle = asyncio.Event()
        self._idle.set()
        self._run_steps = 0  # of the whole run, by the broker's last order; 0: unknown
        self._version = learner.steps  # published; the learner's own count is ahead while a step is being published
        self._last: messages.Trained | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._over = False  # the broker has ended the run
        keep = self.config.trainer.keep_checkpoints
        self.checkpoints = Checkpoints(worker.layout, keep, self._report_checkpoints, self._may_be_best, newest=saved)
        self._fetch = Fetch(self.store, learner, thread.seconds)
        self._early = Early(self._fetch, self._turn, self._waits_for, self._begin)

    def progress(self) -> object:
        """Changes with every micro-batch and with what is written of a checkpoint; None if there is nothing to do."""
        idle, written = self._idle.is_set() and not self._turn.locked(), self.checkpoints.progress
        return None if idle and written is None else (self._version, self._phase, written)

    def introduce(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "weights": self._announced,
            "life": self._life,
            "training": self._training(),
        }

    def heartbeat(self) -> messages.Heartbeat:
        stats = stats_of("trainer", self._thread.seconds.read())
        return messages.Heartbeat(
            worker=self.name, version=self._version, phase=self._phase, stats=stats, training=self._training()
        )

    def _training(self) -> int:
        """The step that it has; -1: none."""
        return -1 if self._step is None else self._version

    def _report(self, message: messages.Message) -> None:
        """In the background, until the broker has acknowledged it."""
        report = self.spawn(self.membership.report(message, f"reporting {type(message).__name__}"))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    async def take(self, message: messages.BeginGroups | messages.TrainStep) -> None:
        if isinstance(message, messages.BeginGroups):
            self.spawn(self._early.take(message))
        else:
            await self._take_step(message)

    async def _take_step(self, order: messages.TrainStep) -> None:
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
            self._step = watched(whole, self._not_fetched)
            self._step.add_done_callback(self._fetched)
        await asyncio.shield(self._step)

    def _waits_for(self, step: int) -> bool:
        return step == self._version and self._step is None and not self._over

    async def _begin(self, step: int, group: list[StoredSample]) -> None:
        def begin() -> None:
            self._publisher.withdraw()  # the memory is for training now
            self._learner.begin(step, group, self._stage("overlap"))

        await self._thread.run(begin, "train")
        self._phase = "idle" if self._step is None else self._phase

    def _stage(self, name: str, *, ends: bool = True) -> Progress:
        """Shows a part of a step as the phase. `ends`: raises when the process stops."""

        def progress(done: int, total: int) -> None:
            if self.worker.stopping and ends:
                raise TrainerError("stopped in the middle of a step, which will be trained again")
            self._phase = f"{name} {done}/{total}"

        return progress

    def _not_fetched(self, _: BaseException) -> None:
        """The caller that ordered the step gets the error."""
        self._step, self._phase = None, "idle"
        self._idle.set()

    def _fetched(self, task: asyncio.Task[Fetched]) -> None:
        if not (self.worker.stopping or task.cancelled() or task.exception()):
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
            metrics = await self._thread.run(train, "train")
            self._phase = "publish"
            metrics |= fetched.metrics | {"timing_s/publish": await self._publish()}
        self._last = messages.Trained(worker=self.name, step=step, metrics=metrics, life=self._life)
        self._step = None
        more = cause("trained", [sample.info.id for sample in fetched.samples], step=step)
        log.info("step %d trained: %s", step + 1, trained_line(metrics), extra=more)
        self._report(self._last)
        if self._version % self.config.trainer.checkpoint_every == 0 or self._may_be_best(self._version):
            await self._save()
        if self._step is None:
            self._phase = "idle"
            self._idle.set()

    def _may_be_best(self, version: int) -> bool:
        """Whether the version is evaluated and the best checkpoint is kept."""
        due = version == self._run_steps or version % max(1, self.config.eval.every) == 0
        return self.config.trainer.keep_best and due

    async def _publish(self) -> float:
        """Returns the seconds that it took."""
        started = time.perf_counter()
        published = await self._thread.run(lambda: self._publisher.publish_from(self._learner), "publish")
        self._version = published.version
        return time.perf_counter() - started

    async def _save(self) -> None:
        """Write a checkpoint and report it. The next step waits only for a copy, see `trainer.async_checkpoints`."""
        started, copy = time.perf_counter(), self.config.trainer.async_checkpoints

        def take(folder: Path) -> Finish:
            return self._lineage.before(self._learner.snapshot(folder, copy=copy), folder)

        async with self._turn:
            steps, self._phase = self._learner.steps, "checkpoint"
            await self.checkpoints.free()
            write = await self.checkpoints.begin(steps, take, self._thread.run)
            writing = self.checkpoints.finish(steps, write, time.perf_counter() - started)
            if not copy:
                with self._thread.seconds.during("checkpoint"):
                    await writing
                return
        self.spawn(writing)

    def _report_checkpoints(self, oldest: int, newest: int) -> None:
        self._report(messages.Checkpointed(worker=self.name, step=oldest, newest=newest, life=self._life))

    def finish(self) -> None:
        if not self._over:
            self._over = True
            self.spawn(self._finish())

    async def _finish(self) -> None:
        await self._idle.wait()
        await self.checkpoints.written()
        if self.checkpoints.newest != self._version:
            await self._save()
            await self.checkpoints.written()
        await self.checkpoints.report()  # again: a broker may have restarted
        if self._reports:
            await asyncio.wait(self._reports, timeout=LAST_REPORTS_S)
        self.worker.stop()
