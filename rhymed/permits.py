"""Which role may ask what. Pure: a table by receiver, and one question to it.

Holds on links with keys. Where there are none (ipc, loopback without net.keys) whoever can connect is trusted.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rhymed import messages as m
from rhymed.errors import NotAllowed
from rhymed.keys import ROLES, KeyRole

Permits: TypeAlias = dict[type[m.Message], frozenset[KeyRole]]

_ALL = frozenset(ROLES)
_WORKERS: frozenset[KeyRole] = frozenset({"rollout", "reward", "trainer"})
_ROLLOUT: frozenset[KeyRole] = frozenset({"rollout"})
_REWARD: frozenset[KeyRole] = frozenset({"reward"})
_TRAINER: frozenset[KeyRole] = frozenset({"trainer"})
_BROKER: frozenset[KeyRole] = frozenset({"broker"})
_OPERATOR: frozenset[KeyRole] = frozenset({"operator"})

TO_BROKER: Permits = {
    m.Join: _WORKERS,
    m.Heartbeat: _WORKERS,
    m.Leave: _WORKERS,
    m.Generated: _ROLLOUT,
    m.Ahead: _ROLLOUT,
    m.Loaded: _ROLLOUT,
    m.GiveBack: _ROLLOUT | _REWARD,
    m.Scored: _REWARD,
    m.Trained: _TRAINER,
    m.Checkpointed: _TRAINER,
    m.GetQueues: _ALL,
    m.GetGroup: _ALL,
    m.Pause: _OPERATOR,
    m.Drain: _OPERATOR,
}

TO_STORE: Permits = {
    m.OpenRun: _BROKER,
    m.PutPrompts: _BROKER,
    m.MarkSamples: _BROKER,
    m.ForgetLogprobs: _BROKER,
    m.GetLengths: _BROKER,
    m.GetJournal: _BROKER,
    m.PutSamples: _ROLLOUT | _BROKER,  # the broker's key also imports an earlier run's
    m.PutPartials: _ROLLOUT,
    m.GetPartials: _ROLLOUT,
    m.GetHistory: _ROLLOUT | _BROKER,
    m.GetPrompts: _WORKERS | _BROKER,
    m.GetSamples: _WORKERS | _BROKER,
    m.PutScores: _REWARD | _BROKER,  # the broker's: zeros, when reward.on_error says so
    m.GetStoreStats: _ALL,
}

TO_WEIGHTS: Permits = {m.GetManifest: _ROLLOUT, m.GetWeights: _ROLLOUT}

RECEIVERS: dict[Any, Permits] = {m.ToBroker: TO_BROKER, m.ToStore: TO_STORE, m.ToWeights: TO_WEIGHTS}
"""By the union of what a receiver takes. Of another receiver nobody may ask anything."""


ABOUT_OTHERS = (m.GetQueues, m.Drain)
"""Their `worker` is not who speaks."""


def check(accepts: Any, role: KeyRole | None, message: Any) -> None:
    """Raises `NotAllowed` unless the holder of such a key may send this. `role` is None for a key that has none."""
    what = type(message).__name__
    if role is None:
        raise NotAllowed(f"{what}: this key does not count any more; take the newest from where the keys are made")
    if role not in RECEIVERS.get(accepts, {}).get(type(message), ()):
        raise NotAllowed(f"a {role} key may not send {what}")
    if isinstance(message, m.Join) and message.role != role:
        raise NotAllowed(f"a {role} key may not join as {message.role}")
    worker = None if isinstance(message, ABOUT_OTHERS) else getattr(message, "worker", None)
    if worker is not None and not _named(worker, role):
        raise NotAllowed(f"with a {role} key a worker's name begins with {role}- or {role}@, and {worker!r} does not")


def _named(worker: str, role: str) -> bool:
    """A key of one role must not speak in the name of a worker of another."""
    return worker == role or worker.startswith((f"{role}-", f"{role}@"))
