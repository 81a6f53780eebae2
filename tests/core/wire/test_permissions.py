"""Who may ask what: the table is whole, and a key speaks for its own role only."""

from typing import Any, get_args

import pytest

from rhymed.core import messages
from rhymed.core.errors import NotAllowed
from rhymed.core.wire import permissions
from rhymed.core.wire.keys import KeyRole


@pytest.mark.parametrize("receiver", [messages.ToBroker, messages.ToStore, messages.ToWeights])
def test_the_table_has_every_message_of_its_receiver_and_no_other(receiver: Any) -> None:
    assert set(permissions.RECEIVERS[receiver]) == set(get_args(receiver))


def allowed(receiver: Any, role: KeyRole | None, message: Any) -> bool:
    try:
        permissions.check(receiver, role, message)
    except NotAllowed:
        return False
    return True


STEP = messages.Trained(worker="trainer", step=0, metrics={})


def test_only_the_trainer_says_trained() -> None:
    assert allowed(messages.ToBroker, "trainer", STEP)
    for role in ("rollout", "reward", "viewer", "store", "broker", None):
        assert not allowed(messages.ToBroker, role, STEP)


def test_only_the_broker_marks_samples() -> None:
    mark = messages.MarkSamples(samples=[], state="trained")
    assert allowed(messages.ToStore, "broker", mark)
    assert not any(allowed(messages.ToStore, role, mark) for role in ("rollout", "reward", "trainer", "viewer"))


def test_rewards_are_the_reward_workers_and_weights_the_rollout_workers() -> None:
    assert allowed(messages.ToStore, "reward", messages.PutScores(scores=[]))
    assert not allowed(messages.ToStore, "rollout", messages.PutScores(scores=[]))
    assert allowed(messages.ToStore, "broker", messages.PutScores(scores=[])), "history import uses the broker's key"
    assert allowed(messages.ToWeights, "rollout", messages.GetManifest(version=0))
    assert not allowed(messages.ToWeights, "reward", messages.GetManifest(version=0))
    assert allowed(messages.GetSlice, "rollout", messages.GetSlice(edition="e", index=0))
    assert not allowed(messages.GetSlice, "trainer", messages.GetSlice(edition="e", index=0))


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_a_join_has_the_role_of_its_key(role: KeyRole) -> None:
    def join(as_role: Any, worker: str) -> messages.Join:
        return messages.Join(role=as_role, worker=worker, host="h", pid=1)

    assert allowed(messages.ToBroker, role, join(role, f"{role}-0"))
    assert allowed(messages.ToBroker, role, join(role, f"{role}@host:12"))
    for other in {"rollout", "reward", "trainer"} - {role}:
        assert not allowed(messages.ToBroker, role, join(other, f"{role}-0"))


def test_nobody_speaks_in_the_name_of_another_role() -> None:
    for name in ("rollout-0", "rollout@h:1", "rewarding", "", "reward0"):
        assert not allowed(messages.ToBroker, "reward", messages.Leave(worker=name))
    assert allowed(messages.ToBroker, "reward", messages.Leave(worker="reward"))


def test_everybody_with_a_key_may_look_and_nobody_without() -> None:
    for role in ("broker", "store", "trainer", "rollout", "reward", "viewer"):
        assert allowed(messages.ToBroker, role, messages.GetQueues())
    assert not allowed(messages.ToBroker, None, messages.GetQueues())


def test_only_the_operator_steers_and_about_any_worker() -> None:
    for order in (messages.Pause(paused=True), messages.Drain(worker="rollout-1", drained=True)):
        assert allowed(messages.ToBroker, "operator", order)
        for role in ("broker", "store", "trainer", "rollout", "reward", "viewer", None):
            assert not allowed(messages.ToBroker, role, order), role
    assert allowed(messages.ToBroker, "operator", messages.GetQueues(brief=True))
    assert not allowed(messages.ToBroker, "operator", messages.Leave(worker="rollout-1"))


def test_a_receiver_without_a_table_takes_nothing() -> None:
    assert not allowed(messages.ToReward, "broker", messages.ScoreSamples(samples=[]))


ID = messages.SampleId(step=0, prompt="00ff00ff00ff00ff", index=0)


def test_turns_are_the_rollout_workers_and_answers_the_environment_workers() -> None:
    turns = messages.PutTurns(samples=[], numbers=[], turns=[])
    answer = messages.PutAnswer(sample=ID, number=0, answer=messages.Answer(length=1))
    calls = messages.PutCalls(sample=ID, number=0, attempt="a")
    for role in get_args(KeyRole):
        assert allowed(messages.ToStore, role, turns) == (role == "rollout")
        assert allowed(messages.ToStore, role, answer) == allowed(messages.ToStore, role, calls)
        assert allowed(messages.ToStore, role, answer) == (role == "environment")
    turned = messages.Turned(worker="rollout-0", samples=[])
    assert allowed(messages.ToBroker, "rollout", turned)
    assert not allowed(messages.ToBroker, "environment", messages.Turned(worker="environment-0", samples=[]))
    assert allowed(messages.ToBroker, "environment", messages.Answered(worker="environment-0", samples=[]))
    assert not allowed(messages.ToBroker, "rollout", messages.Answered(worker="rollout-0", samples=[]))


def test_a_rollout_key_reads_of_a_session_what_it_continues_and_ends_none() -> None:
    assert allowed(messages.ToStore, "rollout", messages.GetSessions(samples=[ID]))
    whole = messages.GetSessions(samples=[ID], logprobs=True)
    assert not allowed(messages.ToStore, "rollout", whole)
    assert allowed(messages.ToStore, "environment", whole)

    def sample(**more: Any) -> messages.PutSamples:
        info = messages.SampleInfo(id=ID, prompt_length=1, length=2, finish_reason="stop", versions=[(0, 2)], **more)
        return messages.PutSamples(samples=[info])

    assert allowed(messages.ToStore, "rollout", sample())
    for more in ({"turns": [1, 1]}, {"earned": 1.0}, {"forks": [messages.Fork(start=1, row=0, shared=1)]}):
        assert not allowed(messages.ToStore, "rollout", sample(**more)), more
        assert allowed(messages.ToStore, "environment", sample(**more))
