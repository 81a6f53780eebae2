"""`reward.on_error` between a real reward worker, a real store and the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.actors import Rollout, Trainer
from rhymed.core.config import Config, Reward
from rhymed.core.errors import Overloaded, RewardError
from rhymed.core.messages import GiveBack, SampleId, Score, Scored
from rhymed_broker.service import Reports
from rhymed_store.client import NewSample
from rhymed_workers.reward.worker import RewardWorker
from tests.broker.cluster import Cluster, changed
from tests.broker.ledger.stories import SmallPlan, Story


class LosesOne(Rollout):
    """Reports the first sample of each group of step 0 as generated, but stores it only the second time."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lost: set[SampleId] = set()

    async def generate(self, ids: Sequence[SampleId]) -> None:
        put, lost = self.store.put_samples, {id for id in ids if id.step == 0 and id.index == 0} - self.lost
        self.lost |= lost

        async def put_others(samples: Sequence[NewSample]) -> None:
            await put([sample for sample in samples if sample.info.id not in lost])

        with contextlib.ExitStack() as stack:
            self.store.put_samples = put_others  # type: ignore[method-assign]
            stack.callback(setattr, self.store, "put_samples", put)
            await super().generate(ids)


@pytest.mark.parametrize("on_error", ["zero", "stop"])
async def test_a_sample_that_the_store_lacks_is_generated_again_whatever_errors_do(
    config: Config, on_error: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        reward = {"on_error": on_error, "scorer": "exact", "processes": 1}
        cluster = await Cluster(changed(config, reward=reward), stack).open()
        worker = RewardWorker(cluster.config, cluster.where, "reward-0")
        await stack.enter_async_context(worker.running())
        await cluster.actor(LosesOne, "rollout-0")
        trainer = await cluster.actor(Trainer, "trainer")
        await asyncio.wait_for(trainer.over.wait(), 60)
        assert [len(step.samples) for step in trainer.steps] == [8, 8, 8]
        assert cluster.broker.ledger.samples.counts["unstored"] == 2
        assert cluster.broker.ledger.samples.counts["dropped"] == 0


def test_an_error_of_a_sample_that_its_sender_does_not_hold_stops_no_run(story: Story) -> None:
    reports, sample = Reports(story.ledger, Reward(on_error="stop")), SampleId(0, "a", 0)
    scores = [Score(id=sample, error="no")]
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.join("other", "reward", slots=0)
    story.generated("w", sample)
    reports.take(Scored(worker="other", scores=scores))
    assert story.state(sample) == "scoring"
    with pytest.raises(RewardError, match="could not be scored: no"):
        reports.take(Scored(worker="r", scores=scores))
    story.ledger.pause()
    with pytest.raises(Overloaded):
        reports.take(Scored(worker="r", scores=scores))


@pytest.mark.parametrize("blamed", [False, True])
def test_a_sample_that_comes_back_because_of_another_one_has_not_failed(story: Story, blamed: bool) -> None:
    reports, sample = Reports(story.ledger, Reward()), SampleId(0, "a", 0)
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", sample)
    for _ in range(4):  # more than it may fail
        reports.take(GiveBack(worker="r", samples=[sample], reason="the store lacks another", blamed=blamed))
        story.tick()
    assert story.state(sample) == ("dropped" if blamed else "scoring")
