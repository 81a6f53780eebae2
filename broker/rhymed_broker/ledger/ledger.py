"""The ledger: where every sample of the open steps is, and what has to happen next. Pure.

Theory of operation
-------------------
The broker reports every event (a worker joins, a sample is generated, a step is trained, a second has passed) with
the time as `now`. The ledger updates its state and queues actions. `drain` assigns the work that waits and returns
all queued actions. The shell performs them, and reports the failure of an action as an event.

A sample is in exactly one state. The usual path: waiting, running (with a rollout worker), generated (the store has
it), scoring (with a reward worker), scored, training (its step is with the trainer), trained. A sample that a worker
loses or gives back returns to the state before the assignment; one that cannot be used is dropped with a reason.
With environments, a sample is turned and acting (with an environment worker, whose first answer is the prompt) before
each turn and after the last. `states.py` has the table of all transitions; `samples.py` applies it, and raises
`InvalidTransition` for any other.

Version v of the policy means that v steps are trained. Step k is open from version k - max_staleness - run_ahead
until it is trained. The evaluation of version v is an open step with the number `evaluation_step(v)`. After a
restart, `start` opens the steps again from the store's journal, and workers that join claim what they still hold.

    samples     states and queues of all samples; `step`: one open step; `meter`: its numbers
    workers     who is here, their free slots, what each holds
    dispatch    which worker gets which waiting samples, and which running samples move (policies: `scheduler`)
    acting      which environment worker answers which samples
    holdings    what workers report, compared with what they were assigned
    retries     what happens to samples that come back, and who is blamed
    handover    which step the trainer has, and which policy version rollout workers load
    evaluation  when a version is evaluated, and its metrics
    Control     what an operator has paused or drained (below)
    refill      which prompts a step has, and which of its groups have no signal and are replaced

Invariants
----------
* At most one worker holds a sample. A sample ends exactly once: trained, or dropped with a reason.
* A worker gets samples of step k only while its weights are at least version k - max_staleness - run_ahead. What it
  reports has no token of a version below k - max_staleness.
* Step k goes to the trainer when the version is k, and all its groups are complete and final.
* An evaluation of version v is sampled from v alone: until it is generated, no worker that has v loads a newer one.
* A report counts if its sender holds the sample; a repeated, late or false one changes nothing. A worker that was
  given up claims what it has when it joins again. A sample that the store turns out to lack is generated again.

What is written before what, so that a crash costs repeated work and never a sample: the store has a sample before the
broker hears of it; the journal has drops before their step is trained (`shell/delivery.py`); a version is published
before the trainer reports it, and its checkpoint follows; log-probs are deleted when a checkpoint covers them.

Rule for changes: everything that changes a sample's state lives in this package, and a new transition is a row in
`states.py` first. Nothing here imports asyncio, zmq, a clock or a logger; events and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.core.errors import SteeringError
from rhymed.core.messages import Drawn, Heartbeat, Join, JournalEntry, SampleId, Score
from rhymed.core.steps import evaluation_step, is_evaluation
from rhymed_broker import scheduler
from rhymed_broker.forecast import Forecast, Lengths
from rhymed_broker.ledger.acting import Acting
from rhymed_broker.ledger.actions import Action, FinishRun, Mark, Release
from rhymed_broker.ledger.dispatch import RELEASE_S, Dispatch
from rhymed_broker.ledger.evaluation import Evaluation, Evaluations, evaluation_of
from rhymed_broker.ledger.handover import Handover
from rhymed_broker.ledger.holdings import Holdings
from rhymed_broker.ledger.meter import StepMeter
from rhymed_broker.ledger.refill import Refill, SignalRule
from rhymed_broker.ledger.retries import Blame, Retries
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.plan import Plan
from rhymed_broker.states import Rules

__all__ = ["Evaluation", "Ledger", "SignalRule", "evaluation_of"]

LONGEST = 1 << 20  # tokens: the cap of the forecast if the caller passes none
DEFAULTS = Rules()


class Ledger:
    """Every event is a method of this. Its parts are there to be read."""

    def __init__(
        self,
        rules: Rules = DEFAULTS,
        policy: scheduler.Policy = scheduler.POLICIES["flow"],
        forecast: Lengths | None = None,
        signal: SignalRule | None = None,
    ) -> None:
        """`signal`: which groups are dropped for want of it; None: none are."""
        self.rules = rules
        self.workers = Workers()
        self.samples = Samples(rules)
        self.retries = Retries(self.samples, self.workers, rules)
        self.handover = Handover(self.samples, self.workers, colocate=rules.colocate, overlap=rules.overlap)
        self.dispatch = Dispatch(self.samples, self.workers, policy, forecast or Forecast(LONGEST))
        self.evaluations = Evaluations(self.samples, self.workers, self.retries)
        self.control = Control(self.samples, self.workers)
        self.acting = Acting(self.samples, self.workers)
        self.refill = Refill(self.samples, self.dispatch, signal)
        self.holdings = holdings = Holdings(self.samples, self.workers, self.retries, self.dispatch)
        self.version = 0
        self.steps = 0  # of the whole run
        self.started = False
        self.finished = False
        self._plan: Plan | None = None
        self._actions: list[Action] = []
        # Events that one part takes alone.
        self.generated, self.called, self.turned = holdings.generated, holdings.called, holdings.turned
        self.answered, self.parked = holdings.answered, holdings.parked
        self.given_back, self.excuse = self.retries.given_back, self.workers.excuse
        self.remember, self.stays = self.dispatch.remember, self.dispatch.stays
        self.slept, self.undelivered = self.handover.slept, self.handover.undelivered
        self.refused = self.handover.failed

    def drain(self, now: float) -> list[Action]:
        """Assign the work that waits; return all actions queued since the last call."""
        if self.started and not self.finished:
            self._actions += self.refill.settle(now)
            if not self.control.paused:
                self._actions += self.handover.hand_over(self.version, now)
                self._actions += self.dispatch.assign(self.version, now)
                self._actions += self.acting.assign(now)
            if self.evaluations.generated_before(self.version):
                self._load(self.workers, now)  # some kept the older version for it
            self._actions += self.evaluations.close_complete(now)
            if self.version >= self.steps and not self.samples.evaluations() and self.workers.trainer is not None:
                self.finished = True
                self._actions.append(FinishRun(f"all {self.steps} steps are trained"))
        actions, self._actions = [*self._actions, *self.samples.take_drops()], []
        return actions

    def pause(self) -> None:
        """Assign no work until `start`: the position is about to change."""
        self.started = self.finished = False

    def start(
        self,
        plan: Plan,
        position: int,
        journal: Iterable[JournalEntry],
        now: float,
        evaluation: Evaluation | None = None,
        drawn: Iterable[Drawn] = (),
    ) -> None:
        """Begin after `position` trained steps, or roll back to there. `journal`, `drawn`: what the store has."""
        journal, workers = list(journal), list(self.workers)
        for worker in workers:
            worker.claims = [*worker.claims, *worker.held]
            for sample in list(worker.held.values()):
                self.workers.release(sample, now)
        self.samples.reset(entry for entry in journal if entry.id.step >= position)
        lost = self.refill.start(plan, self.rules.reach, position, journal, drawn)
        self._actions += [Mark([], "trained", drawn=one) for one in lost]
        self._plan, self.evaluations.schedule, self.steps, self.version = plan, evaluation, plan.steps, position
        self.started, self.finished = True, False
        resumes = any(entry.id.step >= position for entry in journal)
        self.handover.reset(now + self.rules.lost_after_s if resumes else now)
        self._open_steps(now)
        self._actions += self.refill.settle(now)  # workers may hold samples of refills
        for worker in workers:
            if max(worker.version, worker.engine.target or -1) > position:
                worker.version = -1  # that version is trained again, and its weights may differ
            worker.engine.weights_gone()  # their address is the former trainer's
            self._welcome(worker, now)

    def _open_steps(self, now: float) -> None:
        assert self._plan is not None, "start comes first"
        schedule = self.evaluations.schedule
        if schedule is not None and schedule.due(self.version):
            self._open(evaluation_step(self.version), schedule.ids(self.version), now)
        for step in range(self.version, min(self.version + self.rules.reach + 1, self.steps)):
            if step not in self.samples.open_steps:
                self._open(step, self.refill.first(step), now)

    def _open(self, step: int, ids: list[SampleId], now: float) -> None:
        meter = StepMeter(now, self.workers.occupancy.read(now))
        open_step = self.samples.open(step, ids, meter, now)
        self._actions += self.dispatch.opened(open_step)
        open_step.note(now, self.workers.occupancy)

    def join(self, join: Join, now: float) -> bool:
        """A worker is here. True: the trainer is at another position, and `start` has to be called."""
        known = self.workers.by_name.get(join.worker)
        useless = known is not None and bool(known.held) and not known.useful
        if known is not None:
            self._remove(known, "it started again", now, keep=frozenset(join.holding))
        if join.role == "trainer" and self.workers.trainer is not None:
            self._remove(self.workers.trainer, "another trainer joined", now)
        worker = Worker(join, now)
        self.workers.add(worker, now)
        self.workers.welcome(worker, now, useless=useless)
        self.control.joined(worker)
        self.handover.joined(join, worker)
        if join.role == "trainer":
            return self._trainer_joined(join.version, now)
        if self.started:
            self._welcome(worker, now)
        return False

    def _trainer_joined(self, version: int, now: float) -> bool:
        if not self.started or version not in (self.version, self.version + 1):
            return True
        for worker in self.workers:
            worker.engine.weights_gone()  # their address is the former trainer's
        if version == self.version + 1:
            return self.train_done(self.version, now) is None
        self._load(self.workers, now)
        return False

    def _welcome(self, worker: Worker, now: float) -> None:
        claims, worker.claims = worker.claims, []
        self._actions += self.holdings.adopt(worker, claims, self.version, now)
        self._load((worker,), now)

    def leave(self, name: str, now: float) -> None:
        """A worker ends in order. What it held goes to others and does not count as a failure."""
        if worker := self.workers.by_name.get(name):
            self._remove(worker, "it left", now, blame="none")

    def tick(self, now: float) -> dict[str, list[SampleId]]:
        """To be called about once a second. Returns the workers lost now: name -> samples that it held."""
        held = {worker.name: list(worker.held) for worker in self.workers.silent(now, self.rules.lost_after_s)}
        self.samples.counts["lost"] += len(held)
        for worker in [self.workers.by_name[name] for name in held]:
            self._remove(worker, f"silent for {now - worker.seen:.0f} s", now)
        self.workers.end_rests(now)
        self.handover.expire_loads(now)
        self._load(self.workers, now)
        self.evaluations.drop_unreachable(self.version, now)
        self._actions += self.retries.free_stuck(now)
        self.handover.try_again()
        if self.started:
            self.dispatch.rank_again()
            if not self.control.paused:
                self._actions += self.dispatch.move(self.version, now)
            self._actions += self.control.release(now)
            self.dispatch.offer_all()
        return held

    def _remove(
        self, worker: Worker, why: str, now: float, blame: Blame = "worker", keep: frozenset[SampleId] = frozenset()
    ) -> None:
        """`keep`: samples that the worker still has."""
        self.retries.lost(worker, f"{worker.name}: {why}", now, blame, keep)
        if worker is self.workers.trainer:
            self.handover.failed(now)
        self.workers.remove(worker, now)
        self.dispatch.pace.forget(worker.name)

    def heard(self, name: str, now: float) -> None:
        """Something came from this worker: it is not silent."""
        self.workers.by_name[name].seen = now

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        worker = self.workers.by_name[beat.worker]
        worker.heard(beat, now)
        if worker.role == "trainer":
            worker.version, self.handover.training = beat.version, beat.training
        elif self.started:
            free = worker.role == "rollout" and worker.engine.state in ("awake", "falling asleep")
            if free and beat.version != worker.version and self.handover.counts(beat.life, beat.version):
                self.loaded(beat.worker, beat.version, now, beat.life)
            self._actions += self.holdings.compare(worker, beat.holding, self.version, now)

    def scored(self, name: str, scores: Iterable[Score], now: float) -> None:
        self.holdings.scored(name, scores, self.evaluations.points, self.refill.points, now)

    def loaded(self, name: str, version: int, now: float, life: str = "") -> None:
        """From now on this worker samples from this version, of the trainer in this life."""
        worker = self.workers.by_name[name]
        self.handover.loaded(worker, version, now)
        if not self.handover.counts(life, version):
            worker.version = -1
        self._load((worker,), now)

    def _load(self, workers: Iterable[Worker], now: float) -> None:
        if self.started:
            self._actions += self.handover.load(workers, self.version, now)

    def train_done(self, step: int, now: float) -> dict[str, float] | None:
        """The trainer trained this step. Returns the broker's metrics of it; None: it was not handed over."""
        open_step = self.samples.open_steps.get(step)
        if open_step is None or step != self.version or not open_step.handed or not self.started:
            return None
        assert self._plan is not None, "a step was opened"
        assert open_step.drawn is not None, "a step that was handed over is sealed"
        row = self.handover.row(open_step, self._plan.epoch(open_step.drawn.start), now)
        self.dispatch.closed(step)
        done = self.samples.finish(step, now)
        record = open_step.drawn if self.refill.needs_record() else None
        if done or record:
            self._actions.append(Mark(done, "trained", drawn=record))
        self.version = step + 1
        self.handover.done(now)
        self._open_steps(now)
        self._load(self.workers, now)
        return row

    def pause_run(self, paused: bool, now: float) -> None:
        """Assign nothing, or continue. Workers finish what they hold."""
        self.control.pause(paused, now)
        self.dispatch.offer_all()

    def drain_worker(self, name: str, drained: bool, now: float) -> None:
        """Assign nothing to this worker, and move what it holds; or use it again. Raises `SteeringError`."""
        self.control.drain(name, drained)
        self._actions += self.control.release(now)
        self.dispatch.offer_all()


# What an operator has paused or drained. Pure, part of the ledger.
#
# Invariants: while the run is paused, no sample is assigned and no step goes to the trainer. A drained worker is
# assigned nothing, and is asked to release its samples until it has none; this is no failure of theirs. A drained
# reward worker finishes what it scores: that is short and cannot move. Both last until the broker restarts.

NAMED = 8  # workers in an error


class Control:
    def __init__(self, samples: Samples, workers: Workers) -> None:
        self.paused = False
        self.paused_at = 0.0
        self._samples, self._workers = samples, workers
        self._drained: set[str] = set()  # names: a worker that joins again is still drained

    def pause(self, paused: bool, now: float) -> None:
        if paused and not self.paused:
            self.paused_at = now
        self.paused = paused

    def drain(self, name: str, drained: bool) -> None:
        """Raises `SteeringError`. Idempotent."""
        worker = self._workers.by_name.get(name)
        if worker is None and not (name in self._drained and not drained):
            raise SteeringError(f"no worker is called {name!r}; {self._here()}")
        if worker is not None and worker.role == "trainer":
            raise SteeringError(f"{name} is the trainer, and there is no other: pause the run instead")
        self._drained = self._drained | {name} if drained else self._drained - {name}
        if worker is not None and worker.drained != drained:
            self._workers.drain(worker, drained)

    def joined(self, worker: Worker) -> None:
        """It may have been drained before it went away."""
        if worker.name in self._drained:
            self._workers.drain(worker, True)

    def release(self, now: float) -> list[Release]:
        """Requests to the drained workers for their samples."""
        asked = []
        for name in sorted(self._drained & self._workers.by_name.keys()):
            worker = self._workers.by_name[name]
            held = worker.held.values() if worker.role == "rollout" else ()
            movable = [sample for sample in held if self._may_move(sample.id.step, worker)]
            late = [sample for sample in movable if not sample.released or now - sample.released >= RELEASE_S]
            for sample in late:
                sample.released, sample.goal = now, ""
            if late:
                asked.append(Release(name, [sample.id for sample in late]))
        return asked

    def _may_move(self, step: int, worker: Worker) -> bool:
        """An evaluation is sampled from one version alone: it stays on the last worker that has it."""
        if not is_evaluation(step):
            return True
        others = self._workers.of_role("rollout")
        return any(not other.drained and other.version == worker.version for other in others)

    def _here(self) -> str:
        names = sorted(worker.name for worker in self._workers if worker.role != "trainer")
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"here are {', '.join(names[:NAMED])}{more}" if names else "no worker is here"
