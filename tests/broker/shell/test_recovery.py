"""The broker when other processes die at a bad moment or refuse a request: over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.actors import Reward, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import HOPELESS, CheckpointLost, FilesLost, PeerGone, RhymedError, StepRefused, TrainerError
from rhymed.core.run.layout import layout_of
from rhymed.core.run.metrics import MetricsLog
from rhymed.core.wire.sockets import Client
from rhymed_broker import service
from rhymed_broker.shell import delivery
from rhymed_broker.status.timeline import MetricsWriter
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.broker.cluster import Cluster, broker_process, until


class Unsaved(Trainer):
    """Trains, and has not yet written a checkpoint."""

    async def train(self, task: messages.TrainStep) -> None:
        self.version = task.step + 1
        await self.report(messages.Trained(worker=self.name, step=task.step, metrics={"reward/mean": 1.0}))


async def troubles(link: Client) -> list[str]:
    answer = (await link.request(messages.GetQueues(), deadline_s=60)).message
    assert isinstance(answer, messages.Queues)
    return answer.troubles


async def reported(link: Client, words: str) -> None:
    async with asyncio.timeout(60):
        while not any(re.search(words, line) for line in await troubles(link)):
            await asyncio.sleep(0.05)


async def trained(cluster: Cluster, kind: type[Trainer]) -> Any:
    await cluster.actor(Rollout, "rollout-0")
    await cluster.actor(Reward, "reward-0")
    trainer = kind(cluster.where.broker, cluster.store, "trainer")
    await trainer.__aenter__()
    cluster.stack.callback(trainer.vanish)
    await asyncio.wait_for(trainer.over.wait(), 60)
    return trainer


async def test_a_run_is_finished_when_its_last_checkpoint_is_written_and_not_before(cluster: Cluster) -> None:
    watcher = Client(cluster.where.broker, "watcher", peer="broker")
    cluster.stack.callback(watcher.close)
    first = await trained(cluster, Unsaved)
    await reported(watcher, "the trainer writes the last checkpoint")
    await first.__aexit__()  # in order, but without a checkpoint
    await reported(watcher, "no trainer is here to write the last checkpoint")
    assert not cluster.broker.finished
    again = Unsaved(cluster.where.broker, cluster.store, "again")
    again.version = 3
    async with again:
        await asyncio.wait_for(again.over.wait(), 60)
        await again.report(messages.Checkpointed(worker="again", step=1, newest=3))
        assert not cluster.broker.finished
    await until(lambda: cluster.broker.finished, "finish")


async def lose_the_trainer_at_the_end(config: Config, lost: asyncio.Event) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(config, stack).open()
        trainer = await trained(cluster, Unsaved)
        await reported(trainer.link, r"the trainer writes the last checkpoint, ([2-9]|\d\d+) s")
        trainer.vanish()
        lost.set()
        await until(lambda: cluster.broker.stopping, "the end")
        assert not cluster.broker.finished


async def test_a_trainer_that_is_here_has_all_the_time_for_the_last_checkpoint_and_one_that_is_lost_has_not(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ABSENT_S", 0.2)
    lost = asyncio.Event()
    with pytest.raises(CheckpointLost, match="no trainer has been here"):
        await lose_the_trainer_at_the_end(config, lost)
    assert lost.is_set(), "the run ended while the trainer was here"


async def begin_ahead_of_the_store(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(config, stack).open()
        await cluster.store.mark([messages.SampleId(1, "a" * 16, 0)], "dropped", "as an example")
        trainer = Trainer(cluster.where.broker, cluster.store, "trainer")
        trainer.version = 3
        await stack.enter_async_context(trainer)
        await until(lambda: cluster.broker.stopping, "the end")


async def test_a_trainer_ahead_of_the_store_ends_the_run_in_words(config: Config) -> None:
    """Whose store is older than its checkpoint, or new."""
    with pytest.raises(
        FilesLost, match=r"begins after 3 steps, but the newest samples in .* are of step 2.*--without"
    ):
        await begin_ahead_of_the_store(config)


async def begin_behind_the_store(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(config, stack).open()
        await cluster.store.mark([messages.SampleId(1, "a" * 16, 0)], "dropped", "as an example")
        await cluster.store.forget_logprobs(2)
        trainer = Trainer(cluster.where.broker, cluster.store, "trainer")
        trainer.version = 1
        await stack.enter_async_context(trainer)
        await until(lambda: cluster.broker.stopping, "the end")


async def test_a_trainer_behind_what_the_store_has_forgotten_ends_the_run_in_words(config: Config) -> None:
    with pytest.raises(CheckpointLost, match=r"begins after 1 steps.*steps below 2") as raised:
        await begin_behind_the_store(config)
    assert isinstance(raised.value, HOPELESS)


class Refusing(Trainer):
    def take(self, message: Any) -> None:
        raise TrainerError("a sample has no end")


async def be_refused(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(config, stack).open()
        for kind, name in ((Rollout, "rollout-0"), (Reward, "reward-0"), (Refusing, "trainer")):
            await cluster.actor(kind, name)
        await until(lambda: cluster.broker.stopping, "the end")


async def test_a_step_that_is_refused_for_long_ends_the_run_in_words(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "REFUSED_S", 0.5)
    with pytest.raises(StepRefused, match=r"step 1 could not be given to the trainer for .* a sample has no end"):
        await be_refused(config)


async def test_metrics_that_cannot_be_written_hold_up_nothing(cluster: Cluster) -> None:
    cluster.where.metrics.mkdir(parents=True)
    trainer = await trained(cluster, Trainer)
    assert [step.step for step in trainer.steps] == [0, 1, 2]
    await reported(trainer.link, r"a row of metrics.jsonl \(step 2 there\) could not be written, and is dropped: ")


async def test_what_a_dead_trainer_said_does_not_move_the_run(cluster: Cluster) -> None:
    """Its name may be the new one's, in a container for instance."""
    await cluster.store.mark([messages.SampleId(0, "a" * 16, 0)], "dropped", "as an example")  # it has been at step 0
    trainer = Trainer(cluster.where.broker, cluster.store, "trainer")
    trainer.version = 1
    await cluster.stack.enter_async_context(trainer)
    await until(lambda: cluster.broker.ledger.version == 1, "the start")
    for name, life in (("late", ""), ("trainer", "earlier")):
        link = trainer.link if name == "trainer" else Client(cluster.where.broker, name, peer="broker")
        for late in (
            messages.Trained(worker="trainer", step=2, metrics={}, life=life),
            messages.Checkpointed(worker="trainer", step=2, life=life),
        ):
            with pytest.raises(PeerGone, match="join first"):
                await link.request(late, deadline_s=60)
        if name == "late":
            link.close()
    assert cluster.broker.ledger.started
    assert cluster.broker.ledger.version == 1
    assert (await cluster.store.journal(0)).forgotten == 0


async def test_a_trainer_that_is_behind_joins_again_and_sets_the_run_back(cluster: Cluster) -> None:
    trainer = await cluster.actor(Unsaved, "trainer")
    await until(lambda: cluster.broker.ledger.started, "the start")
    cluster.broker.ledger.version = 2
    await until(lambda: trainer.joined == 2 and cluster.broker.ledger.version == 0, "the set-back")


async def test_a_broker_that_was_stopped_blames_nobody_for_it(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        where = layout_of(config)
        await stack.enter_async_context(StoreService(config.store, where).running())
        store = StoreClient(where.store, "test")
        stack.callback(store.close)
        with broker_process(config) as process:
            rollout = await stack.enter_async_context(Rollout(where.broker, store, "rollout-0", work_s=1000))
            trainer = await stack.enter_async_context(Trainer(where.broker, store, "trainer"))
            await until(lambda: rollout.holding, "work")
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(2 * config.schedule.lost_after_s)
            os.kill(process.pid, signal.SIGCONT)
            for _ in range(5):  # its clock comes round meanwhile
                await trainer.link.request(messages.GetQueues(), deadline_s=60)
                await asyncio.sleep(config.schedule.heartbeat_s)
            log = where.log("broker").read_text()
    assert "did not run for" in log
    assert "is lost" not in log
    assert (rollout.joined, trainer.joined) == (1, 1)


class JoinsFirst(Trainer):
    """As one whose link was lost while it trained: it joins with what it has, then tells of it."""

    async def train(self, task: messages.TrainStep) -> None:
        self.version = task.step + 1
        await self.join()
        for _ in range(2):
            await self.report(
                messages.Trained(worker=self.name, step=task.step, metrics={"reward/mean": task.step + 0.5})
            )


async def test_every_step_has_its_row_of_metrics_once(cluster: Cluster) -> None:
    trainer = await trained(cluster, JoinsFirst)
    with contextlib.suppress(RhymedError):
        await trainer.report(messages.Checkpointed(worker=trainer.name, step=3))
    await until(lambda: len(rows(cluster)) >= 3, "three rows")
    assert [(row["step"], row["reward/mean"]) for row in rows(cluster)] == [(0, 0.5), (1, 1.5), (2, 2.5)]


class Told(Unsaved):
    """Counts the steps that the broker has acknowledged: it forgets them."""

    acknowledged = 0

    async def train(self, task: messages.TrainStep) -> None:
        await super().train(task)
        self.acknowledged += 1


async def test_a_step_has_its_row_before_the_trainer_forgets_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, write = threading.Event(), MetricsLog.write

    def late(log: MetricsLog, step: int, metrics: dict[str, float]) -> None:
        slow.wait(60)
        write(log, step, metrics)

    monkeypatch.setattr(MetricsLog, "write", late)
    monkeypatch.setattr("rhymed_broker.service.ROW_S", 60.0)
    await cluster.actor(Rollout, "rollout-0")
    await cluster.actor(Reward, "reward-0")
    trainer = await cluster.actor(Told, "trainer")
    try:
        await until(lambda: cluster.broker.ledger.version >= 1, "a trained step")
        await troubles(trainer.link)  # an answer that comes after the other one
        assert trainer.acknowledged == 0
    finally:
        slow.set()
    await until(lambda: trainer.acknowledged > 0, "the answer")
    assert rows(cluster)[0]["step"] == 0


async def test_a_row_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(4, {"reward/mean": 1.0, "of/broker": 2.0})
    writer = MetricsWriter(log, 4)
    running = asyncio.create_task(writer.run())
    writer.trained(4, {"reward/mean": 1.0})
    writer.trained(5, {"reward/mean": 2.0})
    writer.roll_back(4)
    writer.trained(4, {"reward/mean": 3.0})
    await writer.flush(60)
    running.cancel()
    await writer.close()
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["reward/mean"]) for row in found] == [(4, 1.0), (5, 2.0), (4, 3.0)]


def rows(cluster: Cluster) -> list[dict[str, Any]]:
    file = cluster.where.metrics
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
