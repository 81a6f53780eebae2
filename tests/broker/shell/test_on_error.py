"""`reward.on_error` between a real reward worker, a real store and the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from rhymed.bench.actors import Rollout, Trainer
from rhymed.config import Config
from rhymed.messages import SampleId
from rhymed_store.client import NewSample
from rhymed_workers.reward.worker import RewardWorker
from tests.broker.cluster import Cluster, changed


class LosesOne(Rollout):
    """Reports samples as generated, but the store does not have the first one of step 0."""

    async def generate(self, ids: Sequence[SampleId]) -> None:
        put, lost = self.store.put_samples, {id for id in ids if id.step == 0 and id.index == 0}

        async def put_others(samples: Sequence[NewSample]) -> None:
            await put([sample for sample in samples if sample.info.id not in lost])

        with contextlib.ExitStack() as stack:
            self.store.put_samples = put_others  # type: ignore[method-assign]
            stack.callback(setattr, self.store, "put_samples", put)
            await super().generate(ids)


async def test_with_zero_a_sample_that_the_store_does_not_know_is_dropped_and_the_reward_worker_stays(
    config: Config,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        reward = {"on_error": "zero", "scorer": "exact", "processes": 1}
        cluster = await Cluster(changed(config, reward=reward), stack).open()
        worker = RewardWorker(cluster.config, cluster.where, "reward-0")
        await stack.enter_async_context(worker.running())
        await cluster.actor(LosesOne, "rollout-0")
        trainer = await cluster.actor(Trainer, "trainer")
        await asyncio.wait_for(trainer.over.wait(), 60)
        assert [len(step.samples) for step in trainer.steps] == [6, 8, 8]
