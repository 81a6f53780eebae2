"""The broker as a process: messages in, the ledger decides, requests out. A thin shell around `ledger`.

Events that arrive together lead to one scheduling pass. Every request to a worker has a deadline, and what could not
be delivered goes back to the ledger. The run begins when the dataset is read and the trainer has joined, and ends
when the plan is trained. Nothing here must survive: the store's journal and the trainer's position are the truth.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from rhymed import messages
from rhymed.config import Config, Schedule
from rhymed.errors import CheckpointLost, MalformedMessage, PeerGone, RewardError, RhymedError, StepRefused, WireError
from rhymed.run.layout import RunLayout
from rhymed.run.metrics import MetricsLog
from rhymed.run.timeline import FAILED
from rhymed.service.logline import cause
from rhymed.service.service import Service
from rhymed.text import step_line
from rhymed.wire.sockets import DONE, Server
from rhymed_broker.forecast import Forecast
from rhymed_broker.ledger.actions import (
    Action,
    Assign,
    Cancel,
    Evaluated,
    FinishRun,
    Load,
    Mark,
    Recall,
    Release,
    ScoreSamples,
    Train,
)
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.workers import Worker
from rhymed_broker.pipe import POLICIES, Policy
from rhymed_broker.pipe.policy import stay
from rhymed_broker.shell.delivery import Delivery, Order
from rhymed_broker.shell.liveness import Liveness
from rhymed_broker.shell.on_error import forgive
from rhymed_broker.shell.outbox import Outbox
from rhymed_broker.shell.recovery import Recovery, Report
from rhymed_broker.shell.shutdown import Shutdown
from rhymed_broker.states import Rules
from rhymed_broker.status import snapshot as status
from rhymed_broker.status.dashboard import Dashboard
from rhymed_broker.status.latest import Latest
from rhymed_broker.status.writers import MetricsWriter, TimelineWriter
from rhymed_broker.telemetry.exports import Exports
from rhymed_store.client import StoreClient

log = logging.getLogger(__name__)

RECALLED = 256  # prompts in one question for their lengths
LINGER_S = 3.0  # after the end, for those who watch
FLUSH_S = 30.0  # for the last marks and metrics
EXPORTS_S = 6.0  # for unsent metrics and traces, when the run is stopped


class BrokerService(Service):
    def __init__(self, config: Config, places: RunLayout, *, stays: bool = False) -> None:
        """`stays`: when the run is over it goes on answering, so that who comes late is told; until it is stopped."""
        super().__init__("broker")
        self._stays = stays
        self.config = config
        self.places = places
        self.ledger = Ledger(
            rules_of(config.schedule), policy_of(config), Forecast(config.rollout.max_response_length)
        )
        self.finished = False
        self.latest = Latest(config.run.name, self.ledger, self.lag)
        self._pass: asyncio.Handle | None = None
        self._over = ""  # why the run is over; empty: it is not
        self._outbox = Outbox()
        self._metrics_writer = MetricsWriter(MetricsLog(places.metrics, places.tensorboard))
        self._exports = Exports(config, places)
        self._timeline_writer = TimelineWriter(places.folder)
        self._timeline = self._timeline_writer.timeline
        self._handlers: dict[type[messages.Message], Callable[[bytes, Any], messages.Message]] = {
            messages.Join: self._join,
            messages.Heartbeat: self._heartbeat,
            messages.Generated: self._report,
            messages.Scored: self._report,
            messages.Ahead: self._report,
            messages.GiveBack: self._report,
            messages.Loaded: self._loaded,
            messages.Trained: self._trained,
            messages.Checkpointed: self._checkpointed,
            messages.Leave: self._leave,
            messages.GetQueues: self._queues,
            messages.GetGroup: self._group,
            messages.Pause: self._pause,
            messages.Drain: self._drain,
        }

    async def open(self) -> None:
        gc.set_threshold(100_000, 20, 100)  # the ledger's many objects hold no cycles: looking for some costs pauses
        self.server = Server(
            self.places.listens(self.places.broker), messages.ToBroker, self._handle, keys=self.places.keys("broker")
        )  # workers may join while the dataset is read
        self.store = StoreClient(self.places.store, "broker", self.places.keys("broker"))
        self._delivery = Delivery(self.server, self.ledger, partial(self._outbox.flush, FLUSH_S), self._wake)
        self._shutdown = Shutdown(self.ledger, self._delivery)
        self._recovery = Recovery(self.config, self.places, self.ledger, self.store, self._outbox, self._timeline)
        self.spawn(self._outbox.run())
        self.spawn(self._metrics_writer.run())
        self.spawn(self._exports.run(self.ledger.samples))
        self.spawn(self._timeline_writer.run())
        self.spawn(self._recovery.run(self._apply, self._fail, self._wake))
        self.spawn(Liveness(self.config.schedule, self.ledger, self._delivery, self._timeline).run(self._wake))
        self.spawn(self.latest.watch(self.store))
        snapshot = partial(self._queues, b"", messages.GetQueues(brief=True))
        self.spawn(Dashboard(self.config.net.http, self.places, snapshot).run(), vital=False)

    async def close(self) -> None:
        if self._pass is not None:
            self._pass.cancel()
        if hasattr(self, "server"):
            self.server.close()
        if hasattr(self, "store"):
            self.store.close()
        await asyncio.gather(self._metrics_writer.close(), self._timeline_writer.close())
        await self._exports.close(finished=self.finished, deadline_s=EXPORTS_S)

    def _restart_at(self, position: int) -> None:
        self._recovery.restart_at(position)
        self._metrics_writer.roll_back(position)
        self._shutdown.roll_back()

    # -- messages -----------------------------------------------------------------------------------------------

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        if isinstance(message, messages.Scored):
            message = await self._forgiven(message)
        answer = self._handlers[type(message)](peer, message)
        if not isinstance(message, messages.GetQueues | messages.GetGroup):
            self._wake()
        return answer

    def _join(self, peer: bytes, join: messages.Join) -> messages.Message:
        if join.protocol != messages.PROTOCOL:
            raise MalformedMessage(
                f"{join.worker} speaks protocol {join.protocol}, this broker {messages.PROTOCOL}:"
                " install the same release"
            )
        if join.role == "trainer" and join.version < 0:
            raise MalformedMessage(f"{join.worker} has trained {join.version} steps, it says: there are none below 0")
        now = time.monotonic()
        self._only_trainer(join, now)
        self._delivery.joined(peer, join)
        lost = self._held(join.worker, keep=join.holding)
        if self.ledger.join(join, now):
            self._restart_at(join.version)
        self._timeline.joined(join, now, self.ledger.workers.by_name[join.worker].rests_until - now)
        if self._over:
            self.spawn(self._dismiss([join.worker]))
        elif join.role == "trainer" and self.ledger.finished:
            self.spawn(self._delivery.finish([join.worker], "all steps are trained"))
        more: dict[str, Any] = {"event": "joined", "worker": join.worker}
        log.info("%s joined with %d slots, version %d", join.worker, join.slots, join.version, extra=more)
        if lost:
            more = cause("returned", lost, worker=join.worker, reason="its worker started again")
            log.warning("%s started again: others get the %d samples that it had", join.worker, len(lost), extra=more)
        schedule = self.config.schedule
        step = max(0, join.version) if join.role == "trainer" else self.ledger.version
        return messages.Welcome(
            run=self.config.run.name,
            heartbeat_s=schedule.heartbeat_s,
            lost_after_s=schedule.lost_after_s,
            step=step,
        )

    def _only_trainer(self, join: messages.Join, now: float) -> None:
        """A second trainer is turned away as long as the first one is heard."""
        present = self.ledger.workers.trainer
        if join.role != "trainer" or present is None or present.name == join.worker:
            return
        silent_s = now - present.seen
        if silent_s < 3 * self.config.schedule.heartbeat_s:
            raise WireError(f"{present.name} is the trainer, heard {silent_s:.1f} s ago; end it before another joins")

    def _heartbeat(self, peer: bytes, beat: messages.Heartbeat) -> messages.Message:
        worker = self._known(beat.worker)
        if worker.role == "trainer" and self.ledger.started and beat.version < self.ledger.version:
            raise PeerGone(f"{worker.name} is at step {beat.version}, not {self.ledger.version}: join first")
        self.ledger.heartbeat(beat.worker, beat.version, beat.phase, beat.holding, beat.stats, time.monotonic())
        self._timeline.heard(beat, time.monotonic())
        return DONE

    def _report(self, peer: bytes, report: Report) -> messages.Message:
        """What an unknown worker reports counts too: it is in the store. But it has to join again."""
        if self.ledger.started:
            self._apply(report)
        else:
            self._recovery.keep(report)
        self._known(report.worker)
        return DONE

    def _apply(self, report: Report) -> None:
        now = time.monotonic()
        if isinstance(report, messages.Generated):
            self.ledger.generated(report.worker, report.samples, now)
        elif isinstance(report, messages.Scored):
            self.ledger.scored(report.worker, report.scores, now)
        elif isinstance(report, messages.Ahead):
            self.ledger.parked(report.worker, report.samples, now)
        else:
            level = logging.INFO if report.moved else logging.WARNING
            more = cause("moved" if report.moved else "returned", report.samples, worker=report.worker)
            count, retry, moved = len(report.samples), report.retry, report.moved
            log.log(level, "%s gives back %d samples: %s", report.worker, count, report.reason, extra=more)
            self.ledger.retries.given_back(
                report.worker, report.samples, report.reason, now, retry=retry, moved=moved
            )

    async def _forgiven(self, report: messages.Scored) -> messages.Scored:
        try:
            return await forgive(report, self.config.reward.on_error, self.store)
        except RewardError as error:
            self.spawn(self._fail(error))
            raise

    async def _fail(self, error: RhymedError) -> NoReturn:
        """Tell everybody, then end with this error."""
        self.ledger.pause()
        self._timeline.finished(time.monotonic(), f"{FAILED}{error}")
        await self._delivery.finish(list(self.ledger.workers.by_name), f"{FAILED}{error}")
        raise error

    def _loaded(self, peer: bytes, loaded: messages.Loaded) -> messages.Message:
        self._known(loaded.worker)
        self.ledger.loaded(loaded.worker, loaded.version, time.monotonic())
        self._timeline.event("version", time.monotonic(), worker=loaded.worker, step=loaded.version)
        return DONE

    def _trained(self, peer: bytes, trained: messages.Trained) -> messages.Message:
        self._known(trained.worker)
        self._delivery.check_trainer(peer, trained)
        row = self.ledger.train_done(trained.step, time.monotonic())
        if row is None:
            if trained.step < (self.ledger.version if self._recovery.position is None else self._recovery.position):
                self._metrics_writer.trained(
                    trained.step, trained.metrics
                )  # said twice, or after it has joined again
                return DONE
            self._restart_at(trained.step + 1)  # it was given the step by the broker's earlier life
        metrics = self.latest.trained({**trained.metrics, **(row or {})})
        self._metrics_writer.trained(trained.step, metrics)
        self._timeline.event("trained", time.monotonic(), worker=trained.worker, step=trained.step)
        more = {"event": "trained", "step": trained.step}
        log.info("trained %d/%d   %s", trained.step + 1, self._recovery.steps, step_line(metrics), extra=more)
        return DONE

    def _checkpointed(self, peer: bytes, checkpointed: messages.Checkpointed) -> messages.Message:
        self._known(checkpointed.worker)
        self._delivery.check_trainer(peer, checkpointed)
        step = checkpointed.step
        self._shutdown.checkpointed(max(step, checkpointed.newest))
        self._schedule()  # what is still to be marked of these steps goes before
        self._outbox.put("forget log-probs", lambda: self.store.forget_logprobs(step))
        return DONE

    def _leave(self, peer: bytes, leave: messages.Leave) -> messages.Message:
        log.info("%s left", leave.worker)
        self.ledger.leave(leave.worker, time.monotonic())
        self._timeline.gone("left", leave.worker, time.monotonic())
        self._delivery.forget(leave.worker)
        return DONE

    def _queues(self, peer: bytes, question: messages.GetQueues) -> messages.Message:
        steps = self._recovery.steps if self._recovery.plan else None
        return self.latest.queues(question, steps=steps, finished=self.finished, troubles=self._troubles())

    def _troubles(self) -> list[str]:
        return [
            self._metrics_writer.trouble,
            self._timeline_writer.trouble,
            self._exports.trouble,
            self._shutdown.waits,
        ]

    def _group(self, peer: bytes, question: messages.GetGroup) -> messages.Message:
        return status.group(self.ledger, question.step, question.prompt, time.monotonic())

    def _pause(self, peer: bytes, pause: messages.Pause) -> messages.Message:
        self.ledger.pause_run(pause.paused, time.monotonic())
        log.warning("an operator %s the run", "pauses" if pause.paused else "resumes")
        return DONE

    def _drain(self, peer: bytes, drain: messages.Drain) -> messages.Message:
        self.ledger.drain_worker(drain.worker, drain.drained, time.monotonic())
        log.warning("an operator %s %s", "drains" if drain.drained else "gives work again to", drain.worker)
        return DONE

    def _held(self, name: str, keep: Sequence[messages.SampleId]) -> list[messages.SampleId]:
        """What a worker has, as far as we know, but for these."""
        known, kept = self.ledger.workers.by_name.get(name), set(keep)
        return [id for id in known.held if id not in kept] if known is not None else []

    def _known(self, worker: str) -> Worker:
        found = self.ledger.workers.by_name.get(worker)
        if found is None:
            raise PeerGone(f"{worker} is not known here: join first")
        found.seen = time.monotonic()
        return found

    # -- actions ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """One pass for all that arrives in this turn of the event loop."""
        if self._pass is None and not self.stopping:
            self._pass = asyncio.get_running_loop().call_soon(self._schedule)

    def _schedule(self) -> None:
        self._pass = None
        for action in self.ledger.drain(time.monotonic()):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Mark(ids, state, reason):
                if state == "dropped":
                    more = cause("dropped", ids, reason=reason)
                    log.warning("%d samples dropped, first %s: %s", len(ids), ids[0], reason, extra=more)
                self._outbox.put(f"mark {state}", lambda: self.store.mark(ids, state, reason))
            case Evaluated(version, metrics):
                self.latest.evaluated(version, metrics)
                log.info("version %d evaluated: %s", version, metrics)
                self._metrics_writer.put(version, metrics)
                self._timeline.event("evaluated", time.monotonic(), step=version)
            case FinishRun(reason):
                self.spawn(self._finish(reason))
            case Recall(step, prompts):
                self.spawn(self._recall(step, prompts))
            case Assign() | ScoreSamples() | Cancel() | Release() | Load() | Train():
                self.spawn(self._deliver(action))

    async def _recall(self, step: int, prompts: list[str]) -> None:
        """Forecasts are better with it, but nobody waits for it."""
        try:
            for start in range(0, len(prompts), RECALLED):
                part = prompts[start : start + RECALLED]
                self.ledger.dispatch.remember(await self.store.lengths(part, step))
        except RhymedError as error:
            log.warning("step %d is scheduled without the lengths of earlier epochs: %s", step + 1, error)

    async def _deliver(self, order: Order) -> None:
        try:
            await self._delivery.deliver(order)
        except StepRefused as error:
            await self._fail(error)

    # -- the end ------------------------------------------------------------------------------------------------

    async def _finish(self, reason: str) -> None:
        """The trainer first: if it dies before its last checkpoint, it comes back earlier and the run goes on."""
        log.info("finishing: %s", reason)
        try:
            if not await self._shutdown.last_checkpoint(reason):
                return
        except CheckpointLost as error:
            await self._fail(error)
        self._over = reason
        self._timeline.finished(time.monotonic(), reason)
        await self._dismiss(list(self.ledger.workers.by_name))
        await asyncio.gather(
            self._outbox.flush(FLUSH_S), self._metrics_writer.flush(FLUSH_S), self._timeline_writer.flush()
        )
        await self._exports.close(finished=True, deadline_s=FLUSH_S)
        self.finished = True
        if not self._stays:
            await asyncio.sleep(LINGER_S)
            self.stop()

    async def _dismiss(self, names: list[str]) -> None:
        """Workers that have heard of the end say no goodbye; a trainer does."""
        for name in await self._delivery.finish(names, self._over):
            worker = self.ledger.workers.by_name.get(name)
            if worker is not None and worker.role != "trainer":
                self.ledger.leave(name, time.monotonic())
                self._delivery.forget(name)


def rules_of(schedule: Schedule) -> Rules:
    return Rules(
        max_staleness=schedule.max_staleness,
        run_ahead=schedule.run_ahead,
        max_retries=schedule.max_retries,
        max_losses=schedule.max_losses,
        lost_after_s=schedule.lost_after_s,
        stuck_after_s=schedule.stuck_after_s,
        missing_after_s=max(5.0, 3 * schedule.heartbeat_s),
    )


def policy_of(config: Config) -> Policy:
    """The one that is named; nothing is moved where what a sample has could not be verified elsewhere."""
    policy = POLICIES[config.schedule.policy]
    return policy if config.carries else policy._replace(move=stay)
