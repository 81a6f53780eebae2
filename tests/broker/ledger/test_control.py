"""A paused run and drained workers: stories of the ledger, and the real service over real sockets."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.actors import Reward, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.errors import SteeringError
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.wire.sockets import Client
from rhymed.start.launch import session
from rhymed.start.launch.screen import Screen
from rhymed.start.launch.supervisor import Supervisor
from rhymed_broker import scheduler
from rhymed_broker.ledger.actions import Assign, Load, Release, ScoreSamples, Train
from rhymed_broker.ledger.evaluation import Evaluation
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from rhymed_broker.status.snapshot import diagnostics
from tests.broker.cluster import Cluster, until
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1, B0, B1 = SampleId(0, "a", 0), SampleId(0, "a", 1), SampleId(0, "b", 0), SampleId(0, "b", 1)
X0, X1 = SampleId(EVAL, "x", 0), SampleId(EVAL, "x", 1)
HOUR = 3600.0


def pause(story: Story, paused: bool = True) -> list:
    story.ledger.pause_run(paused, story.now)
    return story.drain()


def drain(story: Story, name: str, drained: bool = True) -> list:
    story.ledger.drain_worker(name, drained, story.now)
    return story.drain()


def hand_over(story: Story, name: str, *ids: SampleId) -> list:
    story.ledger.given_back(name, ids, "moved", story.now, moved=True)
    return story.drain()


def lines(story: Story) -> list[str]:
    return diagnostics(story.ledger, story.now, up_s=story.now, ready=True)


# -- a paused run ---------------------------------------------------------------------------------------------------


def test_a_paused_run_hands_out_nothing_and_goes_on_where_it_was(story: Story) -> None:
    story.begin(SmallPlan())
    assert story.join("w", "rollout", slots=1) == [Assign("w", [A0])]
    story.join("r", "reward")
    assert pause(story) == []
    assert story.generated("w", A0) == [], "neither scored nor followed by another"
    assert story.state(A0) == "generated"
    assert pause(story, False) == [Assign("w", [A1]), ScoreSamples("r", [A0])]


def test_a_paused_run_trains_nothing_new_but_finishes_what_it_trains(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    pause(story)
    assert story.scored("r", A0, A1) == [], "what was with the reward worker is scored, and stays"
    (train,) = pause(story, False)
    assert isinstance(train, Train)
    pause(story)
    assert Load("w", 1) in story.trained(0)
    assert story.loaded("w", 1) == []
    assert pause(story, False) == [Assign("w", [SampleId(1, "a", 0), SampleId(1, "a", 1)])]


def test_ten_hours_of_pause_cost_no_sample(story: Story) -> None:
    """What runs is finished; nothing that waits, or is written, counts as stuck, and nobody as lost."""
    story.begin(SmallPlan(groups=2))
    story.join("w", "rollout", slots=2)
    story.join("r", "reward")
    pause(story)
    story.generated("w", A0, A1)
    for _ in range(10):
        for worker in story.ledger.workers.by_name.values():
            worker.seen = story.now + HOUR  # they beat
        assert story.tick(HOUR) == []
        assert story.lost == {}
    assert [story.state(id) for id in (A0, A1, B0, B1)] == ["generated", "generated", "waiting", "waiting"]
    assert lines(story)[0] == "paused by an operator for 36000 s; `rhymed steer resume` continues"
    assert pause(story, False) == [Assign("w", [B0, B1]), ScoreSamples("r", [A0, A1])]
    assert lines(story) == []


def test_a_worker_that_comes_to_a_paused_run_gets_weights_and_no_work(story: Story) -> None:
    story.begin(SmallPlan())
    pause(story)
    assert story.join("w", "rollout", version=-1) == [Load("w", 0)]
    assert story.loaded("w", 0) == []
    assert story.tick() == []


def test_a_set_back_does_not_end_a_pause(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    pause(story)
    story.ledger.pause()
    story.ledger.start(SmallPlan(), 0, [], story.now)
    assert not any(isinstance(action, Assign) for action in story.drain())
    assert story.ledger.control.paused


# -- drained workers ------------------------------------------------------------------------------------------------


def test_what_a_drained_worker_has_goes_to_another(story: Story) -> None:
    story.begin(SmallPlan())
    assert story.join("w", "rollout") == [Assign("w", [A0, A1])]
    story.join("v", "rollout")
    assert drain(story, "w") == [Release("w", [A0, A1])]
    assert hand_over(story, "w", A0, A1) == [Assign("v", [A0, A1], begun=(A0, A1))]
    assert story.tick() == []
    assert story.ledger.samples.get(A0).failures == 0, "no failure of the sample"
    assert drain(story, "w", False) == []


def test_what_is_not_handed_over_is_asked_for_again(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    drain(story, "w")
    story.beat("w", [A0, A1])
    assert story.tick(5) == []
    for _ in range(3):
        story.beat("w", [A0, A1])
        actions = story.tick(10)
    assert actions == [Release("w", [A0, A1])]
    story.ledger.stays([A1])  # it could not be delivered
    story.beat("w", [A0, A1])
    assert story.tick(1) == [Release("w", [A1])]


def test_parked_samples_are_handed_over_too() -> None:
    story = Story(Ledger(Rules(run_ahead=1)))
    story.begin(SmallPlan())
    story.join("w", "rollout")
    ahead = [SampleId(1, "a", 0), SampleId(1, "a", 1)]
    story.ledger.parked("w", ahead, story.now)
    assert drain(story, "w") == [Release("w", [A0, A1, *ahead])]


def test_a_drained_worker_that_starts_again_is_still_drained(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    drain(story, "w")
    story.ledger.leave("w", story.now)
    assert story.join("w", "rollout") == []
    assert story.tick() == []
    assert drain(story, "w", False) == [Assign("w", [A0, A1], begun=(A0, A1))]


def test_one_that_is_away_can_be_given_work_again(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    drain(story, "w")
    story.ledger.leave("w", story.now)
    drain(story, "w", False)
    assert story.join("w", "rollout") == [Assign("w", [A0, A1], begun=(A0, A1))]


def test_a_policy_that_deals_deals_around_a_drained_worker() -> None:
    """What was dealt to it has to be done by somebody."""
    for name in ("fifo", "rhyme"):
        story = Story(Ledger(policy=scheduler.POLICIES[name]))
        story.join("w", "rollout", slots=2)
        story.join("v", "rollout", slots=8)
        drain(story, "w")
        actions = story.begin(SmallPlan(groups=4))
        assert sorted(id for action in actions if isinstance(action, Assign) for id in action.ids) == [
            SampleId(0, prompt, index) for prompt in "abcd" for index in range(2)
        ], name


def test_a_drained_reward_worker_finishes_what_it_scores_and_gets_no_more(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0)
    assert drain(story, "r") == []
    assert story.generated("w", A1) == []
    story.scored("r", A0)
    assert story.state(A1) == "generated"
    assert drain(story, "r", False) == [ScoreSamples("r", [A1])]


def test_an_evaluation_is_not_taken_from_the_only_worker_that_has_its_version(story: Story) -> None:
    story.begin(SmallPlan(steps=1), evaluation=Evaluation({"test": ["x"]}, steps=1, every=1, samples=2))
    story.join("w", "rollout", slots=2)
    assert {story.state(X0), story.state(X1)} == {"running"}
    assert drain(story, "w") == []
    assert "every rollout worker is drained" in " ".join(lines(story))
    story.join("v", "rollout", slots=2)
    assert story.tick() == [Release("w", [X0, X1])]


def test_all_workers_drained_is_said(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    drain(story, "w")
    hand_over(story, "w", A0, A1)
    assert any("every rollout worker is drained" in trouble for trouble in lines(story))
    drain(story, "w", False)
    assert not any("drained" in trouble for trouble in lines(story))


def test_what_cannot_be_steered_is_said_in_words(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    with pytest.raises(SteeringError, match=r"no worker is called 'v'; here are w$"):
        drain(story, "v")
    with pytest.raises(SteeringError, match="no worker is called 'v'"):
        drain(story, "v", False)
    with pytest.raises(SteeringError, match="trainer is the trainer, and there is no other: pause the run"):
        drain(story, "trainer")


# -- the service ----------------------------------------------------------------------------------------------------


async def ask(cluster: Cluster, message: messages.Message) -> messages.Message:
    client = Client(cluster.where.broker, peer="broker")
    try:
        return (await client.request(message, deadline_s=60)).message
    finally:
        client.close()


async def test_a_run_is_paused_and_goes_on_to_its_end(cluster: Cluster) -> None:
    assert await ask(cluster, messages.Pause(paused=True)) == messages.Done()
    trainer = await cluster.everybody()
    await until(lambda: cluster.broker.ledger.started, "the start")
    for _ in range(3):  # ticks pass
        await asyncio.sleep(cluster.config.schedule.heartbeat_s)
    queues = await ask(cluster, messages.GetQueues(brief=True))
    assert isinstance(queues, messages.Queues)
    assert queues.paused
    assert queues.queues["waiting"] == 8
    assert sum(row.held for row in queues.workers) == 0
    assert not trainer.steps
    await ask(cluster, messages.Pause(paused=False))
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert sum(len(step.samples) for step in trainer.steps) == 24


class Counting(Supervisor):
    """Of no process; notes how often it heard that the run has moved."""

    def __init__(self) -> None:
        super().__init__([], Path, lambda _: None)
        self.heard: list[bool] = []

    def progressed(self, *, further: bool) -> None:
        self.heard.append(further)


async def test_while_a_run_is_paused_no_death_is_held_against_a_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rhymed run` gives a process up that dies again and again while the run does not move; a paused one cannot."""
    monkeypatch.setattr("rhymed.core.run.client.POLL_S", 0.02)
    supervisor, stop = Counting(), asyncio.Event()
    screen = Screen(cluster.config, cluster.where, plain=True, console=Console(file=io.StringIO()))
    watching = asyncio.create_task(session._watch(cluster.where, supervisor, screen, stop, evaluates_only=False))
    try:
        await ask(cluster, messages.GetQueues())
        assert supervisor.heard == []
        await ask(cluster, messages.Pause(paused=True))
        await until(lambda: len(supervisor.heard) >= 5, "the watcher")
        assert all(supervisor.heard)
        await ask(cluster, messages.Pause(paused=False))
        await ask(cluster, messages.GetQueues())
    finally:
        stop.set()
        finished, _ = await asyncio.wait_for(watching, 60)
        assert not finished


async def test_a_worker_is_drained_and_nothing_is_lost(cluster: Cluster) -> None:
    slow = await cluster.actor(Rollout, "rollout-0", work_s=1000)
    assert isinstance(slow, Rollout)
    await cluster.actor(Reward, "reward-0")
    trainer = await cluster.actor(Trainer, "trainer")
    assert isinstance(trainer, Trainer)
    await until(lambda: len(slow.holding) == 8, "work")
    with pytest.raises(SteeringError, match="no worker is called 'rollout-7'; here are reward-0, rollout-0"):
        await ask(cluster, messages.Drain(worker="rollout-7", drained=True))
    await ask(cluster, messages.Drain(worker="rollout-0", drained=True))
    await until(lambda: not slow.holding, "everything handed over")
    await cluster.actor(Rollout, "rollout-1")
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert sum(len(step.samples) for step in trainer.steps) == 24
    queues = await ask(cluster, messages.GetQueues())
    assert isinstance(queues, messages.Queues)
    assert [row.worker for row in queues.workers if row.drained] == ["rollout-0"]


async def test_a_brief_answer_counts_samples_without_naming_them(cluster: Cluster) -> None:
    for number in range(2):
        await cluster.actor(Rollout, f"rollout-{number}", work_s=1000, slots=4)
    await cluster.actor(Trainer, "trainer")
    await until(lambda: len(cluster.broker.ledger.samples.queues["running"]) == 8, "work")
    brief = await ask(cluster, messages.GetQueues(brief=True))
    assert isinstance(brief, messages.Queues)
    reported = {row.worker: (row.held, len(row.holding)) for row in brief.workers}
    assert reported == {"rollout-0": (4, 0), "rollout-1": (4, 0), "trainer": (0, 0)}
