"""The broker with a real store, over real sockets; workers are lean but speak the real protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq

from benchmarks.actors import Reward, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import MalformedMessage, PeerGone, RewardError, WireError
from rhymed.core.wire.sockets import Client
from rhymed.inputs.rows import Row, prompt_id
from rhymed_store.client import NewSample, StoreClient
from tests.broker.cluster import Cluster, broker_process, changed, until


async def test_a_whole_run(cluster: Cluster) -> None:
    trainer = await cluster.everybody()
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert [step.step for step in trainer.steps] == [0, 1, 2]
    ids = [id for step in trainer.steps for id in step.samples]
    assert len(set(ids)) == len(ids) == 24
    assert len({id.prompt for id in ids}) == 6
    assert trainer.steps[0].samples == sorted(trainer.steps[0].samples)
    await trainer.report(messages.Checkpointed(worker=trainer.name, step=3))
    await trainer.leave()
    await until(lambda: cluster.broker.finished, "finish")
    rows = [json.loads(line) for line in cluster.where.metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    for name in ("reward/mean", "rollout/bubble_ratio", "timing_s/step", "staleness/max", "response_length/mean"):
        assert name in rows[0], name
    assert rows[0]["response_length/mean"] == 8


async def test_datasets_have_their_shares_of_every_step(config: Config, tmp_path: Path) -> None:
    """Also after the broker was killed: the mixture follows from the configuration."""
    shares = []
    for name, count, weight in (("large", 12, 1.0), ("small", 6, 3.0)):
        rows = [{"prompt": f"{name} {number}", "answer": "1"} for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shares.append({"path": str(tmp_path / f"{name}.jsonl"), "weight": weight})
    tree = config.model_dump() | {"data": {"datasets": shares}}
    tree["rollout"] |= {"prompts_per_step": 4, "group_size": 2}
    mixed = Config.model_validate(tree)
    async with contextlib.AsyncExitStack() as stack:
        cluster = Cluster(mixed, stack)
        await cluster.open_store()
        with broker_process(mixed) as first:
            trainer = await cluster.everybody(work_s=0.05)
            await until(lambda: trainer.steps, "first step")
            first.kill()
        with broker_process(mixed):
            await asyncio.wait_for(trainer.over.wait(), 60)
        steps = {step.step: sorted({id.prompt for id in step.samples}) for step in trainer.steps}
        rows_of = {prompt: row for row in await rows_in(cluster.store, steps) for prompt in [prompt_id(row)]}
    assert sorted(steps) == [0, 1, 2, 3]  # an epoch has 18 prompts
    for prompts in steps.values():
        assert sum(str(rows_of[prompt]["prompt"]).startswith("small") for prompt in prompts) == 3


class Lucky(Reward):
    def judge(self, id: messages.SampleId) -> messages.Score:
        return messages.Score(id=id, reward=float((int(id.prompt, 16) * (id.step + 1) >> id.index) % 2))


async def drawn_at_the_end(trainer: Trainer, store: StoreClient, steps: int) -> list[messages.Drawn]:
    """What was drawn, once the last step is recorded: the trainer learns of the end before it is written."""
    await asyncio.wait_for(trainer.over.wait(), 60)
    async with asyncio.timeout(60):
        while len(drawn := (await store.journal(0, recent=99)).drawn) < steps:
            await asyncio.sleep(0.02)
    return drawn


@pytest.mark.parametrize("sampler", ["success", "length"])
async def test_a_killed_broker_samples_prompts_as_a_calm_one_does(
    config: Config, tmp_path: Path, sampler: str
) -> None:
    trained = []
    for name in ("calm", "killed"):
        tree = config.model_dump()
        tree["run"] |= {"folder": str(tmp_path / name)}
        tree["data"] |= {"sampler": sampler, "least_chance": 0.1}
        tree["trainer"] |= {"epochs": 4}
        run = Config.model_validate(tree)
        async with contextlib.AsyncExitStack() as stack:
            cluster = Cluster(run, stack)
            await cluster.open_store()
            with broker_process(run) as first:
                for worker in range(1 + (name == "killed")):
                    await cluster.actor(Rollout, f"rollout-{worker}", work_s=0.02)
                await cluster.actor(Lucky, "reward-0")
                trainer = await cluster.actor(Trainer, "trainer")
                if name == "killed":
                    await until(lambda trainer=trainer: len(trainer.steps) > 4, "steps")
                    first.kill()
                else:
                    drawn = await drawn_at_the_end(trainer, cluster.store, 12)
            if name == "killed":
                with broker_process(run):
                    drawn = await drawn_at_the_end(trainer, cluster.store, 12)
            trained.append({step.step: step.samples for step in trainer.steps})
            assert [one.step for one in drawn] == list(range(12))
            assert all(len(one.rates) == 2 for one in drawn)
    assert trained[0] == trained[1]
    plain = Counter(id.prompt for samples in trained[0].values() for id in samples)
    assert (len(set(plain.values())) > 1) == (sampler == "success")  # else all prompts are asked as often


async def rows_in(store: StoreClient, steps: dict[int, list[str]]) -> list[Row]:
    return await store.get_prompts(sorted({prompt for prompts in steps.values() for prompt in prompts}))


async def test_a_worker_that_dies_loses_nothing(cluster: Cluster) -> None:
    trainer = await cluster.everybody()
    dying = Rollout(cluster.where.broker, cluster.store, "dying", work_s=1000)
    await dying.__aenter__()
    await until(lambda: dying.holding or trainer.over.is_set(), "work for the dying")
    dying.vanish()
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert sum(len(step.samples) for step in trainer.steps) == 24


async def test_the_broker_is_killed_and_starts_again(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = Cluster(config, stack)
        await cluster.open_store()
        with broker_process(config) as first:
            trainer = await cluster.everybody(work_s=0.1)
            await until(lambda: trainer.steps, "first step")
            first.kill()
        with broker_process(config):
            await asyncio.wait_for(trainer.over.wait(), 60)
        ids = [id for step in trainer.steps for id in step.samples]
        assert {id.step for id in ids} == {0, 1, 2}
        assert len({(step.step, tuple(step.samples)) for step in trainer.steps}) == 3  # told twice: the same


class StuckAtTwo(Trainer):
    async def train(self, task: messages.TrainStep) -> None:
        """Without a checkpoint: what is after the first step may still be needed."""
        if task.step < 2:
            self.version = task.step + 1
            await self.report(messages.Trained(worker=self.name, step=task.step, metrics={}))


async def test_a_trainer_comes_back_from_an_older_checkpoint(cluster: Cluster) -> None:
    await cluster.actor(Rollout, "rollout-0")
    await cluster.actor(Reward, "reward-0")
    trainer = StuckAtTwo(cluster.where.broker, cluster.store, "trainer")
    await trainer.__aenter__()
    await until(lambda: trainer.version >= 2, "two steps")
    trainer.vanish()
    again = Trainer(cluster.where.broker, cluster.store, "trainer")
    again.version = 1
    await cluster.stack.enter_async_context(again)
    await asyncio.wait_for(again.over.wait(), 60)
    assert [step.step for step in again.steps] == [1, 2]
    assert again.steps[0].samples == trainer.steps[1].samples


async def test_what_a_dead_broker_had_not_marked_as_trained_is_marked_by_the_next(cluster: Cluster) -> None:
    """But not samples that no step has: one of an unknown prompt, one behind the last of its group."""
    tokens, logprobs = np.arange(3, dtype=np.uint32), np.zeros(3, np.float32)
    (known, *_) = await cluster.store.put_prompts([{"prompt": "p0", "answer": "1"}])
    ends = {
        messages.SampleId(0, known, 0): "trained",
        messages.SampleId(0, known, 4): "dropped",
        messages.SampleId(0, "a" * 16, 0): "dropped",
        messages.SampleId(1, "a" * 16, 0): "scored",
    }
    for id in ends:
        info = messages.SampleInfo(id=id, prompt_length=3, length=3, finish_reason="stop", versions=[(0, 3)])
        await cluster.store.put_samples([NewSample(info, tokens, tokens, logprobs)])
    await cluster.store.put_scores([messages.Score(id=id, reward=1.0) for id in ends])
    trainer = Trainer(cluster.where.broker, cluster.store, "trainer")
    trainer.version = 1
    await cluster.stack.enter_async_context(trainer)
    async with asyncio.timeout(60):
        while (states := {entry.id: entry.state for entry in (await cluster.store.journal(0)).entries}) != ends:
            assert all(state in ("scored", ends[id]) for id, state in states.items())
            await asyncio.sleep(0.02)


class Failing(Reward):
    def judge(self, id: messages.SampleId) -> messages.Score:
        wrong = id.step == 0 and id.index == 0
        return messages.Score(id=id, error="no answer found") if wrong else messages.Score(id=id, reward=1.0)


class Zeroing(Failing):
    """As the reward worker with `reward.on_error = "zero"`."""

    def judge(self, id: messages.SampleId) -> messages.Score:
        score = super().judge(id)
        return score if score.error is None else messages.Score(id=id, reward=0.0, error=score.error)


async def test_scoring_errors_drop_by_default(cluster: Cluster) -> None:
    await cluster.actor(Rollout, "rollout-0")
    await cluster.actor(Failing, "reward-0")
    trainer = await cluster.actor(Trainer, "trainer")
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert [len(step.samples) for step in trainer.steps] == [6, 8, 8]
    assert [step.steps for step in trainer.steps] == [3, 3, 3]  # of the run, for the learning rate's schedule
    assert trainer.steps[0].metrics["reward/error_rate"] == 0.25


async def test_scoring_errors_as_zero(config: Config) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(changed(config, reward={"on_error": "zero"}), stack).open()
        await cluster.actor(Rollout, "rollout-0")
        await cluster.actor(Zeroing, "reward-0")
        trainer = await cluster.actor(Trainer, "trainer")
        await asyncio.wait_for(trainer.over.wait(), 60)
        assert [len(step.samples) for step in trainer.steps] == [8, 8, 8]
        wrong = [id for id in trainer.steps[0].samples if id.index == 0]
        assert [found.info.reward for found in await cluster.store.get_samples(wrong)] == [0.0, 0.0]


async def run_with_failing_scorer(config: Config) -> list[messages.TrainStep]:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(config, stack).open()
        await cluster.actor(Rollout, "rollout-0")
        await cluster.actor(Failing, "reward-0")
        trainer = await cluster.actor(Trainer, "trainer")
        await asyncio.wait_for(trainer.over.wait(), 60)
        await until(lambda: cluster.broker.stopping or trainer.steps, "end")
    return trainer.steps


async def test_scoring_errors_may_stop_the_run(config: Config) -> None:
    with pytest.raises(RewardError, match="could not be scored: no answer found"):
        await run_with_failing_scorer(changed(config, reward={"on_error": "stop"}))


async def test_another_protocol_is_turned_away(cluster: Cluster) -> None:
    link = Client(cluster.where.broker, "old", peer="broker")
    join = messages.Join(role="rollout", worker="old", host="h", pid=1, protocol=messages.PROTOCOL + 1)
    with pytest.raises(MalformedMessage, match=f"protocol {messages.PROTOCOL + 1}, this broker {messages.PROTOCOL}"):
        await link.request(join, deadline_s=60)
    link.close()


async def test_who_is_not_known_has_to_join(cluster: Cluster) -> None:
    link = Client(cluster.where.broker, "stranger", peer="broker")
    for message in (messages.Heartbeat(worker="stranger"), messages.Generated(worker="stranger", samples=[])):
        with pytest.raises(PeerGone, match="join first"):
            await link.request(message, deadline_s=60)
    link.close()


async def test_a_second_trainer_is_turned_away(cluster: Cluster) -> None:
    await cluster.actor(Trainer, "trainer")
    with pytest.raises(WireError, match="trainer is the trainer, heard"):
        await cluster.actor(Trainer, "usurper")


def ask_plainly(address: str) -> list[dict]:
    """Nothing of rhymed on this side of the wire."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        request = [{"kind": "request", "id": 7, "deadline_s": 60.0}, {"type": "get_queues"}]
        socket.send_multipart([msgpack.packb(part) for part in request])
        assert socket.poll(60_000)
        return [msgpack.unpackb(part) for part in socket.recv_multipart()]


async def test_any_msgpack_client_can_ask_for_the_queues(cluster: Cluster) -> None:
    rollout = await cluster.actor(Rollout, "rollout-0", work_s=1000)
    await cluster.actor(Trainer, "trainer")
    await until(lambda: len(rollout.holding) == 8, "work")
    envelope, body = await asyncio.to_thread(ask_plainly, cluster.where.broker)
    assert envelope == {"kind": "reply", "id": 7}
    assert body["type"] == "queues"
    assert body["queues"] == {**dict.fromkeys(body["queues"], 0), "running": 8}
    held = {row["worker"]: row.get("holding", []) for row in body["workers"]}
    assert len(held["rollout-0"]) == 8
    assert held["rollout-0"][0]["id"]["step"] == 0
    assert body["open_steps"][0]["groups"] == 2


@pytest.mark.parametrize("version", [-1, 2**31])
async def test_a_trainer_of_impossibly_many_steps_is_turned_away(cluster: Cluster, version: int) -> None:
    link = Client(cluster.where.broker, "trainer", peer="broker")
    join = messages.Join(role="trainer", worker="trainer", host="h", pid=1, version=version)
    with pytest.raises(MalformedMessage, match=f"trainer reports {version} trained steps: a run has 0 to"):
        await link.request(join, deadline_s=60)
    link.close()
