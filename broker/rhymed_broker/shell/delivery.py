"""Sends the ledger's actions to workers and the trainer as messages, each with a deadline.

Owns the addresses: a worker is reached over the link that it last joined over, and the trainer is the process that
joined last. An action that cannot be delivered goes back to the ledger with the reason. Knows nothing of reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from rhymed.core import messages
from rhymed.core.errors import DeadlineExceeded, PeerGone, RhymedError, StepRefused, StoreError
from rhymed.core.messages import NO_SIGNAL, SampleId
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import Attempt, retry_store
from rhymed.core.wire.sockets import Server
from rhymed_broker.ledger.actions import Act, Assign, Begin, Cancel, Close, Load, Release, ScoreSamples, Sleep, Train
from rhymed_broker.ledger.ledger import Ledger

# The broker's writes to the store, in order and in the background: marks in the journal, log-probs to delete.
#
# A write is repeated while the store is away, up to a deadline; then the broker ends with that error. Losing the
# queue in a crash is safe: a missing mark costs repeated work, never a sample.

log = logging.getLogger(__name__)


class Outbox:
    def __init__(self) -> None:
        self._writes: asyncio.Queue[tuple[str, Attempt]] = asyncio.Queue()

    def put(self, what: str, write: Attempt) -> None:
        """`write` may be called several times."""
        self._writes.put_nowait((what, write))

    async def run(self) -> None:
        """Until cancelled. Raises `StoreError` if the store stays away."""
        while True:
            what, write = await self._writes.get()
            await retry_store(write, what)
            self._writes.task_done()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all is written, up to the deadline; returns whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writes.join(), deadline_s)
            return True
        return False


def log_drop(ids: Sequence[SampleId], reason: str) -> None:
    level = logging.INFO if reason.startswith(NO_SIGNAL) else logging.WARNING
    fields = cause("dropped", ids, reason=reason)
    log.log(level, "%d samples dropped, first %s: %s", len(ids), ids[0], reason, extra=fields)


DELIVERY_S = 15.0  # for the answer that a worker has accepted a request; the work comes later
TRAIN_S = 300.0  # the trainer answers when it has read all samples of the step
REFUSED_S = 600.0  # then the run ends

OF_SAMPLES: dict[type, Callable[..., messages.Message]] = {
    Act: messages.Act,
    Close: messages.Close,
    ScoreSamples: messages.ScoreSamples,
    Cancel: messages.Cancel,
    Release: messages.Release,
}
Order = Assign | Act | Close | ScoreSamples | Cancel | Release | Load | Sleep | Begin | Train


class Delivery:
    def __init__(
        self,
        server: Server,
        ledger: Ledger,
        written: Callable[[], Awaitable[bool]],
        wake: Callable[[], None],
    ) -> None:
        """`written`: waits until the store has all marks; `wake`: the ledger has changed."""
        self._server, self._ledger = server, ledger
        self._written, self._wake = written, wake
        self._peers: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}  # the reverse
        self._weights = ""  # address at which the trainer serves them
        self._life = ""  # of the trainer that joined last
        self._train: Train | None = None  # the last one; earlier ones no longer matter

    def joined(self, peer: bytes, join: messages.Join) -> None:
        self.forget(join.worker)
        self._peers[join.worker], self._names[peer] = peer, join.worker
        if join.role == "trainer":
            self._weights, self._life = join.weights, join.life

    def peer(self, worker: str) -> bytes | None:
        """The link that it joined over."""
        return self._peers.get(worker)

    def name(self, peer: bytes) -> str | None:
        """The worker that joined over this link, and is not lost."""
        return self._names.get(peer)

    def is_connected(self, worker: str) -> bool:
        peer = self._peers.get(worker)
        return peer is not None and self._server.is_connected(peer)

    def forget(self, worker: str) -> None:
        self._names.pop(self._peers.pop(worker, b""), None)

    def check_trainer(self, peer: bytes, report: messages.Trained | messages.Checkpointed) -> None:
        """Raises `PeerGone` if the report is from a process that has been replaced."""
        if self._peers.get(report.worker) != peer or report.life != self._life:
            raise PeerGone(f"{report.worker} has joined again since it sent this: join first")

    async def deliver(self, order: Order) -> None:
        """Raises `StepRefused` if the trainer has refused a step for too long."""
        if isinstance(order, Train):
            self._train = order
        _log(order)
        try:
            if isinstance(order, Train) and not await self._written():
                raise StoreError(
                    "the step's dropped samples are not yet in the store"
                )  # a restart would bring them back
            await self.ask(order.worker, self._message(order), TRAIN_S if isinstance(order, Train) else DELIVERY_S)
        except RhymedError as error:  # of the link or of the worker
            self._undelivered(order, error)

    async def ask(self, worker: str, message: messages.Message, deadline_s: float = DELIVERY_S) -> None:
        peer = self._peers.get(worker)
        if peer is None:
            raise PeerGone(f"{worker} is gone")
        await self._server.request(peer, message, deadline_s=deadline_s)

    async def finish(self, names: Sequence[str], reason: str) -> list[str]:
        """Report the end of the run to these workers. Returns those that have heard it."""
        finish = messages.Finish(reason=reason)
        answers = await asyncio.gather(*(self.ask(name, finish) for name in names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("%s did not learn of the end: %s", name, answer)
        return [name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException)]

    def _message(self, order: Order) -> messages.Message:
        match order:
            case Assign(_, ids, begun):
                return messages.Generate(samples=ids, begun=list(begun))
            case Act(_, ids) | Close(_, ids) | ScoreSamples(_, ids) | Cancel(_, ids) | Release(_, ids):
                return OF_SAMPLES[type(order)](samples=ids)
            case Load(_, version):
                return messages.LoadVersion(version=version, weights=self._weights, life=self._life)
            case Sleep():
                return messages.Sleep()
            case Begin(_, step, ids):
                return messages.BeginGroups(step=step, samples=ids)
            case Train(_, step, ids, metrics):
                return messages.TrainStep(step=step, samples=ids, metrics=metrics, steps=self._ledger.steps)

    def _undelivered(self, order: Order, error: RhymedError) -> None:
        ids = order.ids if isinstance(order, Assign | Act | ScoreSamples | Release) else ()
        fields = cause("undelivered", ids, reason=str(error))
        log.warning("%s to %s failed: %s", type(order).__name__, order.worker, error, extra=fields)
        now = time.monotonic()
        match order:
            case Assign(name, ids, _) | Act(name, ids) | ScoreSamples(name, ids):
                silent = isinstance(error, PeerGone | DeadlineExceeded)  # then it cannot be a sample's fault
                self._ledger.given_back(name, ids, str(error), now, blame="none" if silent else "worker")
            case Load(worker=name) | Sleep(worker=name):
                self._ledger.undelivered(name)
            case Release(_, ids):
                self._ledger.stays(ids)
            case Train(_, step, _, _) if order is self._train and step == self._ledger.version:
                self._refused(step, error, now)
        self._wake()

    def _refused(self, step: int, error: RhymedError, now: float) -> None:
        self._ledger.refused(now, str(error))
        if (tried_s := self._ledger.handover.refused_s(now)) > REFUSED_S:
            raise StepRefused(
                f"step {step + 1} could not be given to the trainer for {tried_s:.0f} s: {error}; fix that,"
                " then resume the run"
            ) from error


def _log(order: Order) -> None:
    """Workers log what they are assigned; they may not be able to log what is taken from them."""
    rare = isinstance(order, Cancel | Release)
    if isinstance(order, Load | Sleep | Train) or not log.isEnabledFor(logging.INFO if rare else logging.DEBUG):
        return
    kind = type(order).__name__
    fields = cause(kind.lower(), order.ids, worker=order.worker)
    level = logging.INFO if rare else logging.DEBUG
    log.log(level, "%s %d samples to %s, first %s", kind, len(order.ids), order.worker, order.ids[0], extra=fields)
