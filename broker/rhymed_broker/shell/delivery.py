"""What the broker asks of workers and the trainer: the ledger's actions as messages, each with a deadline.

Owns who can be reached how: a worker's link is the one that it joined over last, and the trainer is the process that
joined last. What could not be delivered goes back to the ledger, with the reason. Knows nothing of what is reported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from rhymed import messages
from rhymed.errors import DeadlineExceeded, PeerGone, RhymedError, StepRefused, StoreError
from rhymed.service.logline import cause
from rhymed.wire.sockets import Server
from rhymed_broker.ledger.actions import Assign, Cancel, Load, Release, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger

log = logging.getLogger(__name__)

DELIVERY_S = 15.0  # a worker answers that it took something; its work comes later
TRAIN_S = 300.0  # the trainer answers when it has read all of the step
REFUSED_S = 600.0  # as long as others wait for one that does not do what it is asked

Order = Assign | ScoreSamples | Cancel | Release | Load | Train


class Delivery:
    def __init__(
        self, server: Server, ledger: Ledger, written: Callable[[], Awaitable[bool]], wake: Callable[[], None]
    ) -> None:
        """`written`: waits until what was decided is in the store; `wake`: the ledger has news."""
        self._server, self._ledger = server, ledger
        self._written, self._wake = written, wake
        self._peers: dict[str, bytes] = {}
        self._weights = ""  # where the trainer serves them
        self._life = ""  # of the trainer that joined last
        self._train: Train | None = None  # given last: an earlier one's fate is of no interest

    def joined(self, peer: bytes, join: messages.Join) -> None:
        self._peers[join.worker] = peer
        if join.role == "trainer":
            self._weights, self._life = join.weights, join.life

    def forget(self, worker: str) -> None:
        self._peers.pop(worker, None)

    def check_trainer(self, peer: bytes, told: messages.Trained | messages.Checkpointed) -> None:
        """Raises `PeerGone` if this is from a process, or over a link, that another has taken the place of."""
        if self._peers.get(told.worker) != peer or told.life != self._life:
            raise PeerGone(f"{told.worker} has joined anew since it said this: join first")

    async def deliver(self, order: Order) -> None:
        """Raises `StepRefused` when the trainer has not taken a step for too long: nothing else will come of it."""
        if isinstance(order, Train):
            self._train = order
        _tell_of(order)
        try:
            if isinstance(order, Train) and not await self._written():
                raise StoreError("what is dropped of the step is not yet written down")  # it must not come back later
            await self.ask(order.worker, self._message(order), TRAIN_S if isinstance(order, Train) else DELIVERY_S)
        except RhymedError as error:  # the link's, or the worker's own
            self._undelivered(order, error)

    async def ask(self, worker: str, message: messages.Message, deadline_s: float = DELIVERY_S) -> None:
        peer = self._peers.get(worker)
        if peer is None:
            raise PeerGone(f"{worker} is gone")
        await self._server.request(peer, message, deadline_s=deadline_s)

    async def finish(self, names: Sequence[str], reason: str) -> list[str]:
        """Tell them that the run is over. Those who have heard it."""
        finish = messages.Finish(reason=reason)
        answers = await asyncio.gather(*(self.ask(name, finish) for name in names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("%s was not told of the end: %s", name, answer)
        return [name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException)]

    def _message(self, order: Order) -> messages.Message:
        match order:
            case Assign(_, ids, begun):
                return messages.Generate(samples=ids, begun=list(begun))
            case ScoreSamples(_, ids):
                return messages.ScoreSamples(samples=ids)
            case Cancel(_, ids):
                return messages.Cancel(samples=ids)
            case Release(_, ids):
                return messages.Release(samples=ids)
            case Load(_, version):
                return messages.LoadVersion(version=version, weights=self._weights, life=self._life)
            case Train(_, step, ids, metrics):
                return messages.TrainStep(step=step, samples=ids, metrics=metrics)

    def _undelivered(self, order: Order, error: RhymedError) -> None:
        ids = order.ids if isinstance(order, Assign | ScoreSamples | Release) else ()
        more = cause("undelivered", ids, reason=str(error))
        log.warning("%s to %s failed: %s", type(order).__name__, order.worker, error, extra=more)
        now = time.monotonic()
        match order:
            case Assign(name, ids, _) | ScoreSamples(name, ids):
                silent = isinstance(error, PeerGone | DeadlineExceeded)  # then no sample has done anything to it
                self._ledger.retries.given_back(name, ids, str(error), now, blame="nobody" if silent else "worker")
            case Load(name, _):
                self._ledger.load_failed(name)
            case Release(_, ids):
                self._ledger.dispatch.stay(ids)
            case Train(_, step, _, _) if order is self._train and step == self._ledger.version:
                self._refused(step, error, now)
        self._wake()

    def _refused(self, step: int, error: RhymedError, now: float) -> None:
        self._ledger.handover.failed(now, str(error))
        if (tried_s := self._ledger.handover.refused_s(now)) > REFUSED_S:
            raise StepRefused(
                f"step {step + 1} could not be given to the trainer for {tried_s:.0f} s: {error}; put that right,"
                " then resume the run"
            ) from error


def _tell_of(order: Order) -> None:
    """What workers are given they log themselves; what is taken from them they may not be able to."""
    rare = isinstance(order, Cancel | Release)
    if isinstance(order, Load | Train) or not log.isEnabledFor(logging.INFO if rare else logging.DEBUG):
        return
    kind = type(order).__name__
    more = cause(kind.lower(), order.ids, worker=order.worker)
    level = logging.INFO if rare else logging.DEBUG
    log.log(level, "%s %d samples to %s, first %s", kind, len(order.ids), order.worker, order.ids[0], extra=more)
