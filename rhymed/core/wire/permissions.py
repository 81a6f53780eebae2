"""Which role may send which message. Pure: one table per receiver, and `check`.

Applies to links with keys. Without keys (ipc, loopback without net.keys) every peer that can connect is trusted.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rhymed.core import messages
from rhymed.core.errors import NotAllowed
from rhymed.core.wire.keys import ROLES, KeyRole

Permits: TypeAlias = dict[type[messages.Message], frozenset[KeyRole]]

_ALL = frozenset(ROLES)
_WORKERS: frozenset[KeyRole] = frozenset({"rollout", "environment", "reward", "trainer"})
_ROLLOUT: frozenset[KeyRole] = frozenset({"rollout"})
_ENVIRONMENT: frozenset[KeyRole] = frozenset({"environment"})
_REWARD: frozenset[KeyRole] = frozenset({"reward"})
_TRAINER: frozenset[KeyRole] = frozenset({"trainer"})
_BROKER: frozenset[KeyRole] = frozenset({"broker"})
_OPERATOR: frozenset[KeyRole] = frozenset({"operator"})

TO_BROKER: Permits = {
    messages.Join: _WORKERS,
    messages.Heartbeat: _WORKERS,
    messages.Leave: _WORKERS,
    messages.Generated: _ROLLOUT | _ENVIRONMENT,
    messages.Turned: _ROLLOUT,
    messages.Answered: _ENVIRONMENT,
    messages.Ahead: _ROLLOUT,
    messages.Loaded: _ROLLOUT,
    messages.Asleep: _ROLLOUT,
    messages.GiveBack: _ROLLOUT | _ENVIRONMENT | _REWARD,
    messages.Scored: _REWARD,
    messages.Trained: _TRAINER,
    messages.Checkpointed: _TRAINER,
    messages.GetQueues: _ALL,
    messages.Pause: _OPERATOR,
    messages.Drain: _OPERATOR,
}

TO_STORE: Permits = {
    messages.OpenRun: _BROKER,
    messages.PutPrompts: _BROKER,
    messages.MarkSamples: _BROKER,
    messages.ForgetLogprobs: _BROKER,
    messages.GetLengths: _BROKER,
    messages.GetJournal: _BROKER,
    messages.PutSamples: _ROLLOUT | _ENVIRONMENT | _BROKER,  # the broker also imports samples of an earlier run
    messages.PutPartials: _ROLLOUT,
    messages.GetPartials: _ROLLOUT,
    messages.PutTurns: _ROLLOUT,
    messages.PutAnswer: _ENVIRONMENT,
    messages.PutCalls: _ENVIRONMENT,
    messages.GetSessions: _ROLLOUT | _ENVIRONMENT,
    messages.GetHistory: _ROLLOUT | _BROKER,
    messages.GetPrompts: _WORKERS | _BROKER,
    messages.GetSamples: _WORKERS | _BROKER,
    messages.PutScores: _REWARD | _BROKER,  # the broker also imports rewards of an earlier run
    messages.GetStoreStats: _ALL,
}

TO_WEIGHTS: Permits = {
    messages.GetManifest: _ROLLOUT,
    messages.NextSlices: _ROLLOUT,
    messages.GetSlice: _ROLLOUT,
}

RECEIVERS: dict[Any, Permits] = {
    messages.ToBroker: TO_BROKER,
    messages.ToStore: TO_STORE,
    messages.ToWeights: TO_WEIGHTS,
    messages.GetSlice: {messages.GetSlice: _ROLLOUT},  # all that a relay of weights accepts
}
"""By the union of messages that a receiver accepts. Other receivers refuse all."""


ABOUT_OTHERS = (messages.Drain,)
"""Messages whose `worker` is not the sender."""


def check(accepts: Any, role: KeyRole, message: Any) -> None:
    """Raises `NotAllowed` unless a key of this role may send the message."""
    kind = type(message).__name__
    if role not in RECEIVERS.get(accepts, {}).get(type(message), ()):
        raise NotAllowed(f"a {role} key may not send {kind}")
    if isinstance(message, messages.Join) and message.role != role:
        raise NotAllowed(f"a {role} key may not join as {message.role}")
    if role == "rollout":
        _check_rollout(message)
    worker = None if isinstance(message, ABOUT_OTHERS) else getattr(message, "worker", None)
    if worker is not None and not (worker == role or worker.startswith((f"{role}-", f"{role}@"))):
        raise NotAllowed(f"with a {role} key a worker's name begins with {role}- or {role}@, but {worker!r} does not")


def _check_rollout(message: Any) -> None:
    """Who writes turns decides neither what a sample's environment said nor what it gave, and does not read it."""
    if isinstance(message, messages.GetSessions) and message.logprobs:
        raise NotAllowed("a rollout key may read a session's tokens, but neither its log-probs, calls nor rewards")
    if isinstance(message, messages.PutSamples) and any(_has_environment(info) for info in message.samples):
        raise NotAllowed("a rollout key may not store samples in turns: their environment worker does")


def _has_environment(info: messages.SampleInfo) -> bool:
    return bool(info.turns or info.forks or info.turn_rewards) or info.earned is not None
