"""Who may ask what: the table is whole, and a key speaks for its own role only."""

from typing import Any, get_args

import pytest

from rhymed import messages
from rhymed.errors import NotAllowed
from rhymed.wire import permissions
from rhymed.wire.keys import KeyRole


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
    assert allowed(messages.ToRelay, "rollout", messages.GetSlice(edition="e", index=0))
    assert not allowed(messages.ToRelay, "trainer", messages.GetSlice(edition="e", index=0))


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
    assert allowed(messages.ToBroker, "operator", messages.GetQueues(brief=True, worker="rollout-1"))
    assert allowed(messages.ToBroker, "viewer", messages.GetGroup(step=0, prompt="p"))
    assert not allowed(messages.ToBroker, "operator", messages.Leave(worker="rollout-1"))


def test_a_receiver_without_a_table_takes_nothing() -> None:
    assert not allowed(messages.ToReward, "broker", messages.ScoreSamples(samples=[]))
