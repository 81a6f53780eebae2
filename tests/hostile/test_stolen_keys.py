"""What each stolen key can do, and what it cannot: docs/security.md, line by line.

A real broker and store on TCP with CURVE keys, honest workers, and a thief with one role's key and all messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
import zmq

from benchmarks.actors import LOGPROBS, TOKENS, Reward, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.errors import NameTaken, NotAllowed, PeerGone, RhymedError, WireError
from rhymed.core.messages import Role, SampleId
from rhymed.core.wire.keys import ROLES, KeyRole
from rhymed_store.client import NewSample
from tests.broker.cluster import until
from tests.core.messages.test_messages import make
from tests.hostile.locked import Locked, a_run, answer, ends_whole, locked_run

MAY = {
    "rollout": "Join Heartbeat Leave Generated Turned Ahead Loaded Asleep GiveBack GetQueues"
    " PutSamples PutPartials GetPartials PutTurns GetSessions GetHistory GetPrompts GetSamples GetStoreStats",
    "environment": "Join Heartbeat Leave Generated Answered GiveBack GetQueues"
    " PutSamples PutAnswer PutCalls GetSessions GetPrompts GetSamples GetStoreStats",
    "reward": "Join Heartbeat Leave Scored GiveBack GetQueues PutScores GetPrompts GetSamples GetStoreStats",
    "trainer": "Join Heartbeat Leave Trained Checkpointed GetQueues GetPrompts GetSamples GetStoreStats",
    "broker": "GetQueues OpenRun PutPrompts MarkSamples ForgetLogprobs GetLengths GetJournal PutSamples"
    " GetHistory GetPrompts GetSamples PutScores GetStoreStats",
    "store": "GetQueues GetStoreStats",
    "viewer": "GetQueues GetStoreStats",
    "operator": "GetQueues Pause Drain GetStoreStats",
}
"""Key -> messages that broker or store take from it."""


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_run(tmp_path) as run:
        yield run


async def test_a_key_sends_what_its_role_may_and_nothing_else(locked: Locked) -> None:
    for role in ROLES:
        taken: set[str] = set()
        for server, kinds in (("broker", messages.ToBroker), ("store", messages.ToStore)):
            link = locked.link(role, server)
            for kind in get_args(kinds):
                if not isinstance(await answer(link, _sent(kind, role)), NotAllowed):
                    taken.add(kind.__name__)
        assert taken == set(MAY[role].split()), role


def _sent(kind: Any, role: KeyRole) -> Any:
    """With the role's own name and, of a Join, its own role; another name or role is refused below."""
    message = make(kind)
    as_role = role if role in get_args(Role) else "rollout"
    fields = {"worker": role, "role": as_role} if kind is messages.Join else {"worker": role}
    if kind is messages.PutSamples:  # of samples in turns: refused below
        return _with(
            message, samples=[_with(one, turns=[], forks=[], earned=None, turn_rewards=[]) for one in message.samples]
        )
    if kind is messages.GetSessions:
        return _with(message, logprobs=False)
    if kind in (messages.GetQueues, messages.Drain) or "worker" not in kind.__struct_fields__:
        return message
    return _with(message, **fields)


def _with(message: Any, **fields: Any) -> Any:
    plain = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**(plain | fields))


async def test_an_unknown_key_gets_no_answer(locked: Locked) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = locked.where.keys("viewer").to("broker").server_key()
        stranger.connect(locked.where.broker)
        stranger.send_multipart([b"\x82\xa4kind\xa7request\xa2id\x01", b"\x81\xa4type\xaaget_queues"])
        assert not await asyncio.to_thread(stranger.poll, 1000)


def info(id: SampleId, version: int = 0) -> messages.SampleInfo:
    versions = [(version, len(TOKENS))]
    return messages.SampleInfo(id=id, prompt_length=1, length=len(TOKENS), finish_reason="stop", versions=versions)


async def test_a_rollout_key_neither_drops_nor_moves_what_others_hold(locked: Locked) -> None:
    trainer, rollout = await a_run(locked, work_s=1.0)
    held = list(rollout.holding)
    thief = locked.link("rollout")
    assert isinstance(await answer(thief, _join("rollout-9", slots=0)), messages.Welcome)
    reports: list[messages.Message] = [
        messages.Generated(worker="rollout-9", samples=[info(id) for id in held]),
        messages.GiveBack(worker="rollout-9", samples=held, reason="\x1b[31mno", retry=False),
        messages.Ahead(worker="rollout-9", samples=held),
        messages.Heartbeat(worker="rollout-9", holding=[messages.Holding(id=id) for id in held]),
    ]
    for report in reports:
        assert isinstance(await answer(thief, report), messages.Done)
    assert {locked.broker.ledger.samples.get(id).worker for id in held} == {"rollout-0"}
    assert locked.counts["unheld"] == 16
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)


def _join(name: str, role: Role = "rollout", **more: Any) -> messages.Join:
    return messages.Join(role=role, worker=name, host="h", pid=1, **more)


async def test_a_rollout_key_speaks_in_no_name_that_another_worker_has(locked: Locked) -> None:
    trainer, rollout = await a_run(locked, work_s=1.0)
    id, thief = next(iter(rollout.holding)), locked.link("rollout")
    assert isinstance(await answer(thief, _join("rollout-0")), NameTaken)
    for report in (
        messages.Leave(worker="rollout-0"),
        messages.GiveBack(worker="rollout-0", samples=[id], reason="no", retry=False),
        messages.Generated(worker="rollout-0", samples=[info(id)]),
        messages.Heartbeat(worker="rollout-0"),
    ):
        assert isinstance(await answer(thief, report), PeerGone)
    for name in ("trainer", "reward-0"):
        assert isinstance(await answer(thief, _join(name)), NotAllowed)
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)
    assert rollout.joined == 1


Does: TypeAlias = "Callable[[Thief, list[SampleId]], messages.Message]"


class Thief(Rollout):
    """Takes samples and does to them what `does` sends."""

    def __init__(
        self, *args: Any, does: Callable[[Thief, list[SampleId]], messages.Message], **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.does, self.took = does, 0

    async def generate(self, ids: Any) -> None:
        self.took += len(ids)
        for id in ids:
            self.holding.pop(id, None)
        await self.report(self.does(self, list(ids)))


def refuse(thief: Thief, ids: list[SampleId]) -> messages.Message:
    return messages.GiveBack(worker=thief.name, samples=ids, reason="no worker could", retry=False)


def lie(thief: Thief, ids: list[SampleId]) -> messages.Message:
    return messages.Generated(worker=thief.name, samples=[info(id, thief.version) for id in ids])


class Checks(Reward):
    """Reads what it scores, as a reward worker does."""

    async def score(self, ids: Any) -> None:
        scores = []
        for id in ids:
            try:
                await self.store.get_samples([id])
                scores.append(self.judge(id))
            except RhymedError as error:
                scores.append(messages.Score(id=id, error=str(error), unstored=True))
        await self.store.put_scores([score for score in scores if score.reward is not None])
        for id in ids:
            self.holding.pop(id, None)
        await self.report(messages.Scored(worker=self.name, scores=scores))


@pytest.mark.parametrize(("does", "counted"), [(refuse, "returned"), (lie, "unstored")])
async def test_a_rollout_key_that_takes_samples_slows_the_run_and_drops_none(
    locked: Locked, does: Any, counted: str
) -> None:
    await locked.actor(Checks, "reward-0")
    await locked.actor(Rollout, "rollout-0", slots=2)
    thief = await locked.actor(Thief, "rollout-9", does=does, slots=2)
    trainer = await locked.actor(Trainer, "trainer")  # both get their first samples now
    await ends_whole(locked, trainer)
    assert thief.took
    assert locked.counts[counted] > 0


async def test_a_rollout_key_under_several_names_drops_samples(locked: Locked) -> None:
    """Under one name more than there are retries: `schedule.max_retries` + 1."""
    await locked.actor(Rollout, "rollout-0", slots=1, work_s=1000)
    thieves = [await locked.actor(Thief, f"rollout-{number}", does=refuse, slots=8) for number in (7, 8, 9)]
    await locked.actor(Trainer, "trainer")
    await until(lambda: locked.counts["dropped"], "a sample is dropped")
    assert locked.counts["returned"] >= len(thieves) - 1
    assert locked.broker.ledger.samples.last_drop == "no worker could"


async def test_a_rollout_key_drops_what_it_holds_by_a_false_version(locked: Locked) -> None:
    def too_new(thief: Thief, ids: list[SampleId]) -> messages.Message:
        return messages.Generated(worker=thief.name, samples=[info(id, 5) for id in ids])

    await locked.actor(Thief, "rollout-9", does=too_new, slots=2)
    await locked.actor(Trainer, "trainer")
    await until(lambda: locked.counts["dropped"], "a sample is dropped")
    reason = locked.broker.ledger.samples.last_drop  # of step 0, or of a later one by now
    assert re.fullmatch(r"mixed: tokens of version 5, allowed are \d and older", reason)


async def test_a_rollout_key_can_write_wrong_samples_but_not_over_right_ones(locked: Locked) -> None:
    trainer, rollout = await a_run(locked, work_s=1.0)
    first = next(iter(rollout.holding))
    thief = locked.store("rollout")
    wrong = NewSample(info(first), TOKENS[:1], TOKENS[::-1].copy(), LOGPROBS)
    assert not await thief.put_samples([wrong]), "the first record of a sample stays: this one is trained"
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)
    second = trainer.steps[1].samples[0]
    wrong = NewSample(info(second, 1), TOKENS[:1], TOKENS[::-1].copy(), LOGPROBS)
    await thief.put_samples([wrong])
    stored = await thief.get_samples([first, second])
    assert [list(sample.tokens) for sample in stored] == [list(TOKENS[::-1]), list(TOKENS)]


async def test_a_reward_key_moves_nothing_that_it_was_not_given(locked: Locked) -> None:
    trainer, rollout = await a_run(locked)
    await until(lambda: locked.counts["generated"] == 8, "samples")
    ids = list(locked.broker.ledger.samples.open_steps[0].samples)
    thief = locked.link("reward")
    assert isinstance(await answer(thief, _join("reward-9", "reward", slots=0)), messages.Welcome)
    scores = [messages.Score(id=id, error="no") for id in ids]
    assert isinstance(await answer(thief, messages.Scored(worker="reward-9", scores=scores)), messages.Done)
    lost = [messages.Score(id=id, unstored=True) for id in ids]
    assert isinstance(await answer(thief, messages.Scored(worker="reward-9", scores=lost)), messages.Done)
    assert locked.counts["unheld"] == 16
    assert isinstance(await answer(thief, _join("rollout-1", "rollout")), NotAllowed)
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)
    assert rollout.joined == 1


async def test_a_reward_key_can_change_rewards_and_drop_the_samples_that_it_is_given(locked: Locked) -> None:
    trainer, _ = await a_run(locked)
    await until(lambda: locked.counts["generated"] == 8, "samples")
    ids = list(locked.broker.ledger.samples.open_steps[0].samples)
    await locked.store("reward").put_scores([messages.Score(id=id, reward=7.0) for id in ids])
    assert [one.info.reward for one in await locked.store("reward").get_samples(ids)] == [7.0] * 8

    class Fails(Reward):
        def judge(self, id: SampleId) -> messages.Score:
            return messages.Score(id=id, error="no")

    await locked.actor(Fails, "reward-9")
    await until(lambda: trainer.steps, "a step")
    assert locked.counts["dropped"] >= 8


async def test_a_reward_key_can_have_what_it_is_given_generated_again(locked: Locked) -> None:
    """It says that the store lacks them, so the worker that wrote them rests, and writes them once more."""

    class Denies(Reward):
        async def score(self, ids: Any) -> None:
            if self.holding:
                scores = [messages.Score(id=id, unstored=True) for id in ids]
                self.holding.clear()
                await self.report(messages.Scored(worker=self.name, scores=scores))

    trainer, _ = await a_run(locked)
    thief = await locked.actor(Denies, "reward-9", slots=8)
    await until(lambda: locked.counts["unstored"] >= 8, "samples are sent back")
    ids = list(locked.broker.ledger.samples.open_steps[0].samples)
    assert len(await locked.store("reward").get_samples(ids)) == 8, "nothing that was written is lost"
    await thief.leave()
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)


async def test_a_trainers_key_replaces_no_trainer_that_is_here(locked: Locked) -> None:
    trainer, _ = await a_run(locked, work_s=1.0)
    thief = locked.link("trainer")
    assert isinstance(await answer(thief, _join("trainer", "trainer", version=0)), NameTaken)
    second = await answer(thief, _join("trainer-2", "trainer", version=0))
    assert isinstance(second, WireError)
    assert "is the trainer, heard" in str(second)
    for report in (
        messages.Trained(worker="trainer", step=0, metrics={}),
        messages.Checkpointed(worker="trainer", step=3, newest=3),
        messages.Leave(worker="trainer"),
    ):
        assert isinstance(await answer(thief, report), PeerGone)
    await locked.actor(Reward, "reward-0")
    await ends_whole(locked, trainer)


async def test_a_trainers_key_without_a_trainer_rolls_the_run_back_serves_its_weights_and_ends_it(
    locked: Locked,
) -> None:
    class Notes(Rollout):
        def take(self, message: Any) -> None:
            if isinstance(message, messages.LoadVersion):
                served.add(message.weights)
            super().take(message)

    class NoCheckpoints(Trainer):
        async def train(self, task: messages.TrainStep) -> None:
            self.version = task.step + 1
            await self.report(messages.Trained(worker=self.name, step=task.step, metrics={}))

    class Thief(Trainer):
        weights = "tcp://127.0.0.1:9"

    served: set[str] = set()
    trainer = await locked.actor(NoCheckpoints, "trainer")
    await locked.actor(Notes, "rollout-0", work_s=0.5)
    await locked.actor(Reward, "reward-0")
    await until(lambda: trainer.steps and locked.broker.ledger.version == 1, "a step")
    await trainer.leave()
    thief = await locked.actor(Thief, "trainer")
    await asyncio.wait_for(thief.over.wait(), 60)
    assert [step.step for step in thief.steps] == [0, 1, 2]
    assert Thief.weights in served


async def test_a_viewers_key_looks_and_an_operators_key_steers(locked: Locked) -> None:
    _, rollout = await a_run(locked, work_s=1000)
    viewer, operator = locked.link("viewer"), locked.link("operator")
    for link in (viewer, operator):
        assert isinstance(await answer(link, messages.GetQueues()), messages.Queues)
    for order in (messages.Pause(paused=True), messages.Drain(worker="rollout-0", drained=True)):
        assert isinstance(await answer(viewer, order), NotAllowed)
    assert not locked.broker.ledger.control.paused
    assert isinstance(await answer(operator, messages.Pause(paused=True)), messages.Done)
    assert locked.broker.ledger.control.paused
    assert isinstance(await answer(operator, messages.Leave(worker="rollout-0")), NotAllowed)
    assert len(rollout.holding) == 8
