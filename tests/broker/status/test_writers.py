"""The timeline of a run as a real broker writes it."""

from __future__ import annotations

import asyncio
import time

import pytest

from rhymed.core import messages
from rhymed.core.run.timeline import FILE, read
from rhymed.core.wire.sockets import Client
from tests.broker.cluster import Cluster, until


async def test_a_run_in_events(cluster: Cluster) -> None:
    trainer = await cluster.everybody()
    await asyncio.wait_for(trainer.over.wait(), 60)
    await trainer.report(messages.Checkpointed(worker=trainer.name, step=3))
    await trainer.leave()
    await until(lambda: cluster.broker.finished, "finish")
    events = read(cluster.where.folder).events
    assert sorted(one.worker or "" for one in events if one.event == "joined") == [
        *("reward-0", "rollout-0", "rollout-1", "trainer"),
    ]
    (begun,) = [one for one in events if one.event == "begun"]
    assert (begun.step, begun.text) == (0, "of 3 steps")
    assert [one.step for one in events if one.event == "trained"] == [0, 1, 2]
    assert events[-1].event == "finished"
    assert events[-1].text


async def test_what_workers_count_becomes_the_timeline(cluster: Cluster) -> None:
    link = Client(cluster.where.broker, "w", peer="broker")
    await link.request(messages.Join(role="rollout", worker="w", host="h", pid=7), deadline_s=60)
    for spent in (0.5, 1.5, 2.5):
        stats = {"seconds/decode": spent, "seconds/idle": spent / 2, "seconds/lunch": 9.0}
        await link.request(messages.Heartbeat(worker="w", version=2, stats=stats), deadline_s=60)
    await link.request(messages.Leave(worker="w"), deadline_s=60)
    link.close()
    folder = cluster.where.folder
    await until(lambda: any(event.event == "left" for event in read(folder).events), "the last row")
    spans = read(folder).spans
    assert sum(span.s for span in spans) == pytest.approx(3.75)
    assert {(span.worker, span.role, span.host, span.version) for span in spans} == {("w", "rollout", "h", 2)}
    assert {name for span in spans for name in span.inside} == {"decode", "idle"}
    assert all(abs(span.t - time.time()) < 60 for span in spans)


async def test_a_timeline_that_cannot_be_written_harms_nobody(cluster: Cluster) -> None:
    (cluster.where.folder / FILE).mkdir(parents=True)
    trainer = await cluster.everybody()
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert len(trainer.steps) == 3
    link = Client(cluster.where.broker, "watcher", peer="broker")
    async with asyncio.timeout(60):
        while not any(
            "timeline" in text for text in (await link.request(messages.GetQueues(), deadline_s=60)).message.troubles
        ):
            await asyncio.sleep(0.02)
    link.close()
