"""Who may join under which name, and who may speak in it: a real broker and store over sockets without keys."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmarks import actors
from benchmarks.actors import Reward, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, NameTaken, Overloaded, PeerGone
from rhymed.core.messages import Role, SampleId
from rhymed.core.wire.sockets import Client
from rhymed_workers import worker as worker_module
from tests.broker.cluster import Cluster, until


@contextlib.asynccontextmanager
async def linked(cluster: Cluster, name: str = "") -> AsyncIterator[Client]:
    link = Client(cluster.where.broker, name, peer="broker")
    try:
        yield link
    finally:
        link.close()


def join(name: str, role: Role = "rollout", **more: Any) -> messages.Join:
    return messages.Join(role=role, worker=name, host="elsewhere", pid=1, **more)


@pytest.mark.parametrize(
    ("role", "name"),
    [("rollout", "trainer"), ("reward", "rollout-7"), ("trainer", "reward@h:1"), ("rollout", "trainer-2")],
)
async def test_a_name_of_another_role_is_refused(cluster: Cluster, role: Role, name: str) -> None:
    async with linked(cluster, name) as link:
        with pytest.raises(MalformedMessage, match=re.escape(f"the name {name} belongs to a ")):
            await link.request(join(name, role, version=0), deadline_s=60)
    assert not cluster.broker.ledger.workers.by_name


async def test_a_worker_with_the_trainers_name_does_not_disturb_the_run(cluster: Cluster) -> None:
    """The trainer keeps its name and its link, and the run ends as if nothing had happened."""
    async with linked(cluster, "trainer") as link:
        trainer = await cluster.actor(Trainer, "trainer")
        with pytest.raises(MalformedMessage, match="belongs to a trainer worker"):
            await link.request(join("trainer"), deadline_s=60)
        await cluster.actor(Rollout, "rollout-0")
        await cluster.actor(Reward, "reward-0")
        await asyncio.wait_for(trainer.over.wait(), 60)
        assert [step.step for step in trainer.steps] == [0, 1, 2]
        assert trainer.joined == 1


async def test_a_connection_has_one_name_until_its_worker_leaves(cluster: Cluster) -> None:
    """Or one peer could make the broker keep any number of workers."""
    async with linked(cluster, "rollout-0") as link:
        await link.request(join("rollout-0"), deadline_s=60)
        with pytest.raises(
            MalformedMessage, match="this connection is that of rollout-0: rollout-1 needs one of its"
        ):
            await link.request(join("rollout-1"), deadline_s=60)
        await link.request(join("rollout-0"), deadline_s=60)
        await link.request(messages.Leave(worker="rollout-0"), deadline_s=60)
        for number in range(100):
            await link.request(join(f"rollout-{number}"), deadline_s=60)
            await link.request(messages.Leave(worker=f"rollout-{number}"), deadline_s=60)
    workers = cluster.broker.ledger.workers
    assert (workers.by_name, workers.deaths) == ({}, {})


async def test_a_report_before_the_start_has_to_be_repeated(cluster: Cluster) -> None:
    async with linked(cluster, "rollout-9") as link:
        await link.request(join("rollout-9"), deadline_s=60)
        back = messages.GiveBack(worker="rollout-9", samples=[SampleId(0, "0" * 16, 0)], reason="why")
        with pytest.raises(Overloaded, match="the run waits for its trainer"):
            await link.request(back, deadline_s=60)
        await cluster.everybody()
        await until(lambda: cluster.broker.ledger.started, "the start")
        await link.request(back, deadline_s=60)


@pytest.mark.parametrize("name", ["a b", "\x1b[31m", "x" * 65, "../x", ""])
async def test_an_impossible_name_is_refused(cluster: Cluster, name: str) -> None:
    async with linked(cluster) as link:
        with pytest.raises(MalformedMessage) as refused:
            await link.request(join(name), deadline_s=60)
    assert "\x1b" not in str(refused.value)


async def test_the_name_of_a_living_worker_is_refused_and_it_keeps_its_samples(cluster: Cluster) -> None:
    holder = await cluster.actor(Rollout, "rollout-0", work_s=1000)
    await cluster.actor(Trainer, "trainer")
    await until(lambda: len(holder.holding) == 8, "work")
    async with linked(cluster, "rollout-0") as link:
        with pytest.raises(NameTaken, match=r"rollout-0 is the name of a rollout worker on .*choose another name"):
            await link.request(join("rollout-0"), deadline_s=60)
        for report in impostors("rollout-0", next(iter(holder.holding))):
            with pytest.raises(PeerGone, match="joined over another link"):
                await link.request(report, deadline_s=60)
    worker = cluster.broker.ledger.workers.by_name["rollout-0"]
    assert len(worker.held) == 8
    assert worker.report.phase != "false"
    assert holder.joined == 1


def impostors(name: str, id: SampleId) -> list[messages.Message]:
    """All that a rollout worker may send."""
    info = messages.SampleInfo(id=id, prompt_length=1, length=1, finish_reason="stop", versions=[(0, 1)])
    return [
        messages.Heartbeat(worker=name, phase="false"),
        messages.Generated(worker=name, samples=[info]),
        messages.GiveBack(worker=name, samples=[id], reason="false", retry=False),
        messages.Ahead(worker=name, samples=[id]),
        messages.Loaded(worker=name, version=7, seconds=0.0),
        messages.Asleep(worker=name, seconds=0.0),
        messages.Leave(worker=name),
    ]


async def test_a_worker_that_was_killed_is_back_at_once_under_its_name_or_from_elsewhere(cluster: Cluster) -> None:
    """Long before it would be lost for its silence."""
    await cluster.actor(Trainer, "trainer")
    dead = await cluster.actor(Rollout, "rollout-0", work_s=1000)
    await until(lambda: len(dead.holding) == 8, "work")
    dead.vanish()
    started = asyncio.get_running_loop().time()
    again = await cluster.actor(Rollout, "rollout-0", work_s=1000)
    await until(lambda: len(again.holding) == 8, "its work again")
    again.vanish()
    async with linked(cluster) as link:
        moved = asyncio.create_task(_insist(link, join("rollout-0")))
        await moved
    assert asyncio.get_running_loop().time() - started < 60


async def _insist(link: Client, message: messages.Join) -> None:
    while True:
        try:
            await link.request(message, deadline_s=60)
            return
        except NameTaken:  # its end has not been read yet
            await asyncio.sleep(0.01)


async def test_a_worker_with_a_taken_name_gives_up_in_words(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actors, "LOST_AFTER_S", 0.2)
    monkeypatch.setattr(worker_module, "NAME_MARGIN_S", 0.0)
    monkeypatch.setattr(worker_module, "NAME_PAUSE_S", 0.05)
    await cluster.actor(Rollout, "rollout-0")
    with pytest.raises(NameTaken, match="choose another name with --name"):
        await cluster.actor(Rollout, "rollout-0")
    assert "joining the run: rollout-0 is the name of" in caplog.text


async def test_a_worker_that_comes_back_while_its_old_connection_is_not_seen_to_end_waits_for_its_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: nothing ended the old connection, and its heartbeats have stopped."""
    monkeypatch.setattr(worker_module, "NAME_PAUSE_S", 0.1)
    old = await cluster.actor(Rollout, "rollout-0")
    for task in old._tasks:
        task.cancel()
    new = await cluster.actor(Rollout, "rollout-0")
    assert cluster.broker.ledger.samples.counts["lost"] == 1
    assert new.joined > 1
