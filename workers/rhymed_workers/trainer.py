"""The trainer's process: takes whole steps by reference, trains, publishes the next version, checkpoints.

All torch work runs on one thread, in the order it was asked for, so heartbeats go on. A step goes: fetch and check
(before the broker is told that it is taken), train, publish, tell, and only then checkpoint. Being told the same
thing twice does no harm: a step that is trained is answered, not trained again. Broker and store may restart at any
time. The mathematics is in `learner`, the loss in `grpo`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from rhymed.config import Config
from rhymed.errors import MalformedMessage, RhymedError, TrainerError
from rhymed.messages import (
    Checkpointed,
    Finish,
    Heartbeat,
    Join,
    Leave,
    Message,
    SampleId,
    ToTrainer,
    Trained,
    TrainStep,
    Welcome,
)
from rhymed.models import resolve_model
from rhymed.places import Places
from rhymed.service import Service
from rhymed.wire import DONE, Client
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers import checkpoint
from rhymed_workers.learner import Learner
from rhymed_workers.patience import patiently
from rhymed_workers.policy import Policy
from rhymed_workers.weights import Publisher, WeightsServer

log = logging.getLogger(__name__)

Result = TypeVar("Result")

ASK_S = 10.0  # the broker answers at once, or is not there
LAST_WORDS_S = 10.0  # for what is not acknowledged when the run is over
FETCH_S = 12.0  # less than the broker waits for the answer to TrainStep


class TrainerService(Service):
    def __init__(self, config: Config, places: Places, name: str = "") -> None:
        super().__init__(name or f"trainer@{socket.gethostname()}:{os.getpid()}")
        self._config, self._places = config, places
        self._torch = ThreadPoolExecutor(1, "torch")
        self._phase = "start"
        self._joined = False
        self._step: asyncio.Task[list[StoredSample]] | None = None  # fetching, or fetched and being trained
        self._idle = asyncio.Event()
        self._idle.set()
        self._version = 0  # published; the learner's own count is ahead while a step is being published
        self._last: Trained | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._saved = 0  # steps in the newest checkpoint
        self._closing = contextlib.AsyncExitStack()

    # -- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._publisher = Publisher(self._places.folder / "weights", self._config.model.dtype)
        self._closing.callback(self._publisher.close)
        self._learner = await self._aside(self._load)
        await self._publish()
        self._weights = WeightsServer(self._places.weights, self._publisher, insecure=self._config.net.insecure)
        self._closing.callback(self._weights.close)
        self._store = StoreClient(self._places.store, self.name)
        self._closing.callback(self._store.close)
        self._broker = Client(self._places.broker, self.name, peer="broker", accepts=ToTrainer, handler=self._handle)
        self._closing.callback(self._broker.close)
        self._phase = "idle"
        self.spawn(self._belong())

    async def close(self) -> None:
        if self._joined:
            with contextlib.suppress(RhymedError):
                await self._broker.request(Leave(worker=self.name), deadline_s=1.0)
        self._torch.shutdown(
            wait=False, cancel_futures=True
        )  # what is half done, a checkpoint too, counts for nothing
        await self._closing.aclose()

    def _load(self) -> Learner:
        """From the newest checkpoint that is whole, else from the model."""
        if self._config.trainer.threads:
            torch.set_num_threads(self._config.trainer.threads)
        self._source = resolve_model(self._config)
        found = checkpoint.newest(self._places.checkpoints)
        temperature = self._config.rollout.temperature
        policy = Policy.load(found.folder if found else self._source, temperature)
        reference = Policy.load(self._source, temperature) if self._config.trainer.kl_coef else None
        learner = Learner(self._config, policy, reference)
        if found:
            learner.load(found.folder)
            self._saved = found.step
        log.info("%s, %d steps trained, from %s", type(policy.model).__name__, learner.steps, found or self._source)
        return learner

    async def _aside(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._torch, work)

    # -- belonging to the run -----------------------------------------------------------------------------------

    async def _belong(self) -> None:
        """Join, then heartbeats; a broker that does not know us (any more) is joined again."""
        welcome = await self._join()
        while True:
            await asyncio.sleep(welcome.heartbeat_s)
            beat = Heartbeat(worker=self.name, version=self._version, phase=self._phase)
            try:
                await self._broker.request(beat, deadline_s=ASK_S)
            except RhymedError as error:
                log.warning("heartbeat: %s; joining again", error)
                welcome = await self._join()

    async def _join(self) -> Welcome:
        async def attempt() -> Welcome:
            join = Join(
                role="trainer",
                worker=self.name,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=self._version,
                weights=self._weights.address,
            )
            answer = (await self._broker.request(join, deadline_s=ASK_S, phase="join")).message
            if not isinstance(answer, Welcome):
                raise MalformedMessage(f"the broker answered Join with {type(answer).__name__}")
            return answer

        welcome: Welcome = await patiently(attempt, "joining the run", on=RhymedError)
        self._joined = True
        return welcome

    def _tell(self, message: Message) -> None:
        """In the background, until the broker has acknowledged it, through its restarts."""
        task = self.spawn(self._insist(message))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _insist(self, message: Message) -> None:
        async def attempt() -> None:
            try:
                await self._broker.request(message, deadline_s=ASK_S)
            except RhymedError:
                await self._join()
                raise

        await patiently(attempt, f"telling {type(message).__name__}", on=RhymedError, pause_s=0.1)

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
            self._tell(known or Trained(worker=self.name, step=order.step, metrics={}))
            return
        if order.step > steps:
            raise TrainerError(f"step {order.step} cannot be trained: {steps} steps are trained, {steps} is the next")
        if self._step is None:
            self._idle.clear()
            self._step = asyncio.get_running_loop().create_task(self._fetch(order.step, order.samples))
            self._step.add_done_callback(self._fetched)
        await asyncio.shield(self._step)

    async def _fetch(self, step: int, ids: list[SampleId]) -> list[StoredSample]:
        started = time.perf_counter()
        self._phase = "fetch"
        samples = await self._store.get_samples(ids, logprobs=True, prompt_tokens=True, deadline_s=FETCH_S)
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

        step = self._version
        metrics = await self._aside(lambda: self._learner.train(samples, progress))
        self._phase = "publish"
        metrics |= {"timing_s/fetch": self._fetch_s, "timing_s/publish": await self._publish()}
        self._last = Trained(worker=self.name, step=step, metrics=metrics)
        self._step = None
        log.info("step %d: %s", step, " ".join(f"{key}={value:.4g}" for key, value in sorted(metrics.items())))
        self._tell(self._last)
        if self._version % self._config.trainer.checkpoint_every == 0:
            await self._save()
        if self._step is None:
            self._phase = "idle"
            self._idle.set()

    async def _publish(self) -> float:
        """Seconds it took."""
        started = time.perf_counter()
        policy, version = self._learner.policy, self._learner.steps
        await self._aside(lambda: self._publisher.publish(version, policy.tensors().items()))
        self._version = version
        return time.perf_counter() - started

    async def _save(self) -> None:
        """Write and tell. The next step waits for it on the torch thread, the workers do not."""
        settings, started = self._config.trainer, time.perf_counter()
        self._phase = "checkpoint"

        def write() -> checkpoint.Checkpoint:
            return checkpoint.save(
                self._places.checkpoints,
                self._learner.steps,
                lambda folder: self._learner.save(folder, self._source),
                settings.keep_checkpoints,
            )

        found = await self._aside(write)
        self._saved = found.step
        log.info("checkpoint %s in %.1f s", found.folder, time.perf_counter() - started)
        self._tell(Checkpointed(worker=self.name, step=found.step))

    async def _finish(self, reason: str) -> None:
        log.info("the run is over: %s", reason)
        await self._idle.wait()
        if self._saved != self._version:
            await self._save()
        if self._telling:
            await asyncio.wait(self._telling, timeout=LAST_WORDS_S)
        self.stop()
