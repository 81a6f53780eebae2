"""The broker as a process: messages in, the ledger decides, requests out. A thin shell around `ledger`.

    admission (join, heartbeat, leave) --+
    reports (of workers), the trainer's -+--> ledger --drain--> delivery (to workers), outbox (to the store)
    liveness (once a second) ------------+       ^
    recovery (dataset, journal) -----------------+      shutdown waits for the last checkpoint

Events of one turn of the event loop lead to one scheduling pass. The run begins when the dataset is read and the
trainer has joined, and ends when the plan is trained. Nothing here must survive: the store's journal and the
trainer's position are the truth.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, get_args

from rhymed.core import messages
from rhymed.core.config import Config, Reward
from rhymed.core.errors import CheckpointLost, Overloaded, RewardError, RhymedError, StepRefused
from rhymed.core.messages import Ahead, Answered, Generated, GiveBack, Join, Scored, Turned
from rhymed.core.run.folder import read_metrics
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.metrics import MetricsLog
from rhymed.core.run.timeline import FAILED
from rhymed.core.service.logfile import cause
from rhymed.core.service.service import Service
from rhymed.core.steps import evaluated_version
from rhymed.core.text import counted, evaluation_lines, step_line
from rhymed.core.wire.sockets import DONE, Server
from rhymed_broker.forecast import Forecast
from rhymed_broker.ledger.actions import Action, Evaluated, FinishRun, Mark, Recall
from rhymed_broker.ledger.ledger import Ledger, SignalRule
from rhymed_broker.scheduler import POLICIES, Policy
from rhymed_broker.scheduler.policy import stay
from rhymed_broker.shell.admission import Admission, Liveness
from rhymed_broker.shell.delivery import Delivery, Order, Outbox, log_drop
from rhymed_broker.shell.recovery import Recovery
from rhymed_broker.states import Rules
from rhymed_broker.status.dashboard import Dashboard
from rhymed_broker.status.snapshot import Latest
from rhymed_broker.status.timeline import MetricsWriter, TimelineWriter
from rhymed_broker.telemetry.exports import Exports
from rhymed_store.client import connect

# Passes workers' reports about samples to the ledger. Before it has started, workers have to repeat them.
#
# Of `reward.on_error` only "stop" is applied here: the reward worker turns an error into a zero, and the ledger drops
# a sample that has no reward.

log = logging.getLogger(__name__)

Report = Generated | Turned | Answered | Scored | Ahead | GiveBack


class Reports:
    def __init__(self, ledger: Ledger, reward: Reward) -> None:
        self._ledger, self._reward = ledger, reward

    def take(self, report: Report) -> None:
        """Raises `RewardError` if a sample could not be scored and the run has to stop for it, and `Overloaded`."""
        if not self._ledger.started:
            raise Overloaded("the run waits for its trainer; try again later")
        if isinstance(report, Scored) and self._reward.on_error == "stop":
            self._check(report)
        self._apply(report)

    def _check(self, report: Scored) -> None:
        """A score of a sample that its sender does not hold stops no run."""
        worker = self._ledger.workers.by_name[report.worker]
        for score in report.scores:
            if score.reward is None and not score.unstored and score.id in worker.held:
                raise RewardError(f"sample {score.id} could not be scored: {score.error} (reward.on_error = 'stop')")

    def _apply(self, report: Report) -> None:
        now = time.monotonic()
        match report:
            case Generated():
                self._ledger.called(report.worker, [info.id for info in report.samples], report.calls)
                self._ledger.generated(report.worker, report.samples, now)
            case Turned():
                self._ledger.turned(report.worker, report.samples, now)
            case Answered():
                self._ledger.called(report.worker, report.samples, report.calls)
                self._ledger.answered(report.worker, report.samples, now)
            case Scored():
                self._ledger.scored(report.worker, report.scores, now)
            case Ahead():
                self._ledger.parked(report.worker, report.samples, now)
            case GiveBack(worker=worker, samples=ids, reason=reason, retry=retry, moved=moved, blamed=blamed):
                level, event = (logging.INFO, "moved") if moved else (logging.WARNING, "returned")
                fields = cause(event, ids, worker=worker)
                log.log(level, "%s gives back %d samples: %s", worker, len(ids), reason, extra=fields)
                self._ledger.given_back(
                    worker, ids, reason, now, retry=retry, blame="sample" if blamed else "none", moved=moved
                )


# The last checkpoint: a run is finished when the trainer has written it and left.
#
# A trainer that is here may take its time: its heartbeats and `trainer.stall_s` bound that. If it dies, the
# supervisor restarts it, perhaps at an earlier step, and then the run continues.


ABSENT_S = 600.0  # for a trainer that died to come back
LEAVE_S = 30.0  # for a trainer that has written it to leave
POLL_S = 0.1


class Shutdown:
    def __init__(self, ledger: Ledger, delivery: Delivery) -> None:
        self.waits = ""  # what the end waits for; empty: nothing
        self._ledger, self._delivery = ledger, delivery
        self._saved = 0  # steps in the newest checkpoint
        self._informed: Join | None = None  # of the trainer that knows of the end

    def roll_back(self) -> None:
        """Checkpoints of later steps no longer count."""
        self._saved = 0

    def checkpointed(self, steps: int) -> None:
        self._saved = max(self._saved, steps)

    async def last_checkpoint(self, reason: str) -> bool:
        """Wait for it, and for the trainer to leave. False: the trainer rolled back, and the run continues.

        Raises `CheckpointLost` if no trainer is here to write it.
        """
        self._informed = None
        begun = idle_at = time.monotonic()  # `idle_at`: since when no trainer is here that has something to write
        try:
            while self._ledger.finished:
                now, trainer = time.monotonic(), self._ledger.workers.trainer
                saved = self._saved >= self._ledger.steps
                if trainer is None and saved:
                    return True
                if trainer is not None and not saved:
                    idle_at = now
                    self.waits = f"the trainer writes the last checkpoint, {now - begun:.0f} s"
                elif not saved:
                    self.waits = f"no trainer is here to write the last checkpoint, {now - idle_at:.0f} s"
                if now - idle_at > (LEAVE_S if saved else ABSENT_S):
                    self._give_up(saved)
                    return True
                await self._inform(reason)
                await asyncio.sleep(POLL_S)
            return False
        finally:
            self.waits = ""

    def _give_up(self, saved: bool) -> None:
        if not saved:
            raise CheckpointLost(
                f"all {self._ledger.steps} steps are trained, but no trainer has been here for {ABSENT_S:.0f} s to"
                " write the last checkpoint: resume the run, and steps without a checkpoint are trained again"
            )
        log.warning("the trainer has not left %g s after the last checkpoint", LEAVE_S)

    async def _inform(self, reason: str) -> None:
        trainer = self._ledger.workers.trainer
        if (
            trainer is not None
            and trainer.join is not self._informed
            and await self._delivery.finish([trainer.name], reason)
        ):
            self._informed = trainer.join


LINGER_S = 3.0  # after the end, so that screens see it
ROW_S = 2.0  # for a step's row to be in its file, before the trainer forgets it
FLUSH_S = 30.0  # for the last marks and metrics
EXPORTS_S = 6.0  # for unsent metrics, when the run is stopped

Handler = Callable[[bytes, Any], messages.Message]


class BrokerService(Service):
    def __init__(self, config: Config, places: RunLayout, *, stays: bool = False) -> None:
        """`stays`: keep answering after the end until stopped, so that late workers learn that the run has ended."""
        super().__init__("broker")
        self._stays = stays
        self.config = config
        self.places = places
        forecast = Forecast(config.rollout.max_response_length)
        signal = SignalRule.of(config.trainer, config.rollout.prompts_per_step)
        environment, overlap = config.environment.active, config.trainer.overlap
        scoring_s = config.reward.longest_s(max(config.rollout.group_size, config.eval.samples))
        rules = Rules.of(config.schedule, scoring_s=scoring_s, environment=environment, overlap=overlap)
        self.ledger = Ledger(rules, policy_of(config), forecast, signal)
        self.finished = False
        self.latest = Latest(config.run.name, self.ledger, self.lag)
        self._pass: asyncio.Task[None] | None = None  # that has not begun
        self._over = ""  # why the run is over; empty: it is not
        self._outbox = Outbox()
        written = max((int(row["step"]) for row in read_metrics(places)), default=-1)
        self._metrics_writer = MetricsWriter(MetricsLog(places.metrics, places.tensorboard), written)
        self._exports = Exports(config, places)
        self._timeline_writer = TimelineWriter(places.folder)
        self._timeline = self._timeline_writer.timeline
        keys = places.keys("broker")
        # Workers may join while the dataset is read.
        self.server = Server(places.listens(places.broker), messages.ToBroker, self._handle, keys=keys)
        self.closing.callback(self.server.close)
        self.store = connect(places, "broker", keys)
        self.closing.callback(self.store.close)
        self._delivery = Delivery(self.server, self.ledger, partial(self._outbox.flush, FLUSH_S), self._wake)
        self._admission = Admission(
            config.run.name, config.schedule, self.ledger, self._delivery, self._timeline, self._restart_at
        )
        self._shutdown = Shutdown(self.ledger, self._delivery)
        self._recovery = Recovery(config, places, self.ledger, self.store, self._outbox, self._timeline)
        self._reports = Reports(self.ledger, config.reward)
        self._handlers = self._handler_table()

    async def open(self) -> None:
        gc.set_threshold(5_000, 5, 8000)  # the ledger has many objects and no cycles: collections only cost pauses
        self.spawn(self._outbox.run())
        self.spawn(self._metrics_writer.run())
        self.spawn(self._exports.run())
        self.spawn(self._timeline_writer.run())
        self.spawn(self._recovery.run(self._fail, self._wake))
        self.spawn(Liveness(self.config.schedule, self.ledger, self._delivery, self._timeline).run(self._wake))
        self.spawn(self.latest.watch(self.store))
        self.spawn(Dashboard(self.config.net.http, self.places, self._snapshot).run(), vital=False)

    def _handler_table(self) -> dict[type[messages.Message], Handler]:
        return {
            messages.Join: self._join,
            messages.Heartbeat: self._admission.heartbeat,
            messages.Leave: self._admission.leave,
            **dict.fromkeys(get_args(Report), self._report),
            messages.Loaded: self._loaded,
            messages.Asleep: self._loaded,
            messages.Trained: self._trained,
            messages.Checkpointed: self._checkpointed,
            messages.GetQueues: self._queues,
            messages.Pause: self._admission.pause,
            messages.Drain: self._admission.drain,
        }

    async def close(self) -> None:
        await self.closing.aclose()
        await asyncio.gather(self._metrics_writer.close(), self._timeline_writer.close())
        await self._exports.close(finished=self.finished, deadline_s=EXPORTS_S)

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        answer = self._handlers[type(message)](peer, message)
        if not isinstance(message, messages.GetQueues):
            self._wake()
        if isinstance(message, messages.Trained):  # the trainer repeats it to a broker that replaces this one
            await self._metrics_writer.flush(ROW_S)
        return answer

    def _join(self, peer: bytes, join: messages.Join) -> messages.Message:
        welcome = self._admission.join(peer, join)
        if self._over:
            self.spawn(self._dismiss([join.worker]))
        elif join.role == "trainer" and self.ledger.finished:
            self.spawn(self._delivery.finish([join.worker], "all steps are trained"))
        return welcome

    def _restart_at(self, position: int) -> None:
        self._recovery.restart_at(position)
        self._metrics_writer.roll_back(position)
        self._shutdown.roll_back()

    def _report(self, peer: bytes, report: Report) -> messages.Message:
        self._admission.member(peer, report.worker)
        try:
            self._reports.take(report)
        except RewardError as error:
            self.spawn(self._fail(error))
            raise
        return DONE

    def _loaded(self, peer: bytes, loaded: messages.Loaded | messages.Asleep) -> messages.Message:
        self._admission.member(peer, loaded.worker)
        if isinstance(loaded, messages.Asleep):
            self.ledger.slept(loaded.worker)
            return DONE
        self.ledger.loaded(loaded.worker, loaded.version, time.monotonic(), loaded.life)
        return DONE

    def _trained(self, peer: bytes, trained: messages.Trained) -> messages.Message:
        self._admission.member(peer, trained.worker)
        self._delivery.check_trainer(peer, trained)
        row = self.ledger.train_done(trained.step, time.monotonic())
        if row is None:
            if trained.step < (self.ledger.version if self._recovery.position is None else self._recovery.position):
                self._metrics_writer.trained(trained.step, trained.metrics)  # repeated, or sent after it joined again
                return DONE
            self._restart_at(trained.step + 1)  # the broker handed it the step before a restart
        metrics = self.latest.trained({**trained.metrics, **(row or {})})
        self._metrics_writer.trained(trained.step, metrics)
        self._timeline.event("trained", time.monotonic(), worker=trained.worker, step=trained.step)
        fields = {"event": "trained", "step": trained.step}
        log.info("trained %d/%d   %s", trained.step + 1, self._recovery.steps, step_line(metrics), extra=fields)
        return DONE

    def _checkpointed(self, peer: bytes, checkpointed: messages.Checkpointed) -> messages.Message:
        self._admission.member(peer, checkpointed.worker)
        self._delivery.check_trainer(peer, checkpointed)
        step = checkpointed.step
        kept = min([step, *(evaluated_version(one.step) for one in self.ledger.samples.evaluations())])
        self._shutdown.checkpointed(max(step, checkpointed.newest))
        self._schedule()  # so that marks of these steps are written before their log-probs are forgotten
        self._outbox.put("forget log-probs", lambda: self.store.forget_logprobs(kept))
        return DONE

    def _queues(self, peer: bytes, request: messages.GetQueues) -> messages.Message:
        steps = self._recovery.steps if self._recovery.plan else None
        sources = self._metrics_writer, self._timeline_writer, self._exports
        warnings = [*(source.trouble for source in sources), self._shutdown.waits]
        return self.latest.queues(request, steps=steps, finished=self.finished, warnings=warnings)

    async def _snapshot(self) -> messages.Message:
        return self._queues(b"", messages.GetQueues(brief=True))

    def _wake(self) -> None:
        """One scheduling pass for everything that arrives in this turn of the event loop."""
        if self._pass is None and not self.stopping:
            self._pass = self.spawn(self._run_pass(), vital=False)

    async def _run_pass(self) -> None:
        self._pass = None  # what arrives from now on needs another one
        self._schedule()

    def _schedule(self) -> None:
        for action in self.ledger.drain(time.monotonic()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Mark(ids, state, reason, drawn):
                if state == "dropped":
                    log_drop(ids, reason)
                self._outbox.put(f"mark {state}", lambda: self.store.mark(ids, state, reason, drawn))
            case Evaluated(version, metrics):
                self.latest.evaluated(version, metrics)
                log.info("evaluated after %s: %s", counted(version, "step"), "; ".join(evaluation_lines(metrics)))
                self._metrics_writer.put(version, metrics)
                self._timeline.event("evaluated", time.monotonic(), step=version)
            case FinishRun(reason):
                self.spawn(self._finish(reason))
            case Recall(step, prompts):
                self.spawn(self._recovery.recall(step, prompts))
            case order:
                self.spawn(self._deliver(order))

    async def _deliver(self, order: Order) -> None:
        try:
            await self._delivery.deliver(order)
        except StepRefused as error:
            await self._fail(error)

    async def _fail(self, error: RhymedError) -> NoReturn:
        """Report the error to all workers, then end with it."""
        self.ledger.pause()
        self._timeline.finished(time.monotonic(), f"{FAILED}{error}")
        await self._delivery.finish(list(self.ledger.workers.by_name), f"{FAILED}{error}")
        raise error

    async def _finish(self, reason: str) -> None:
        """The trainer first: if it dies before its last checkpoint, the run rolls back and continues."""
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
        """Workers that have heard of the end send no Leave; a trainer does."""
        heard = await self._delivery.finish(names, self._over)
        for name in heard:
            worker = self.ledger.workers.by_name.get(name)
            if worker is not None and worker.role != "trainer":
                self._admission.dismissed(name)


def policy_of(config: Config) -> Policy:
    """The configured policy, without moves if tokens so far could not be verified on another worker."""
    policy = POLICIES[config.schedule.policy]
    return policy if config.carries else policy._replace(move=stay)
