"""Which sample is where. Pure: what happened and the time come in, what is to be done comes out of `drain`.

Invariants: a sample is with at most one worker; it ends exactly once, trained or dropped with a reason; a worker
gets samples of step k only while its weights are at least version k - max_staleness, or `run_ahead` less, and what it
reports has no token of older ones than k - max_staleness; step k goes to the trainer when
the version is k and all its groups are complete. Version v means v trained steps. An evaluation of version v (step
EVAL + v) is sampled from version v alone: until it is generated, no worker that has v loads a newer one.

Said twice, or too late, or by somebody who had been given up, a report does no harm: what the store has counts, the
rest is ignored. Knows no asyncio, socket, clock or logger. Why a sample may move is in `table`, where they all are in
`samples`, who is here in `workers`; which worker gets what is a policy's decision (`pipe`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rhymed.messages import EVAL, Holding, Join, JournalEntry, SampleId, SampleInfo, Score
from rhymed_broker import pipe
from rhymed_broker.forecast import Forecast
from rhymed_broker.ledger.actions import Action, Cancel, Evaluated, FinishRun, Load, Mark
from rhymed_broker.ledger.control import Control
from rhymed_broker.ledger.dispatch import Dispatch, Lengths
from rhymed_broker.ledger.evaluation import Evaluation
from rhymed_broker.ledger.handover import Handover
from rhymed_broker.ledger.meter import StepMeter, step_side
from rhymed_broker.ledger.retries import Blame, Retries
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.states import State

LONGEST = 1 << 20  # tokens, where nobody says
LOAD_PATIENCE_S = 300.0  # then a worker that has not loaded the version is told again


class Steps(Protocol):
    """A plan, as the ledger sees it."""

    steps: int

    def samples(self, step: int) -> list[SampleId]: ...

    def epoch(self, step: int) -> int: ...


class Ledger:
    def __init__(
        self,
        *,
        max_staleness: int = 0,
        max_retries: int = 2,
        max_losses: int = 10,
        lost_after_s: float = 20.0,
        stuck_after_s: float = 900.0,
        missing_after_s: float = 5.0,
        policy: pipe.Policy = pipe.POLICIES["flow"],
        run_ahead: int = 0,
        forecast: Lengths | None = None,
    ) -> None:
        """`run_ahead`: steps, beyond those that their weights allow, that workers may begin to write."""
        self.max_staleness = max_staleness
        self.lost_after_s = lost_after_s
        self.workers = Workers()
        self.samples = Samples(max_staleness, run_ahead)
        self.dispatch = Dispatch(self.samples, self.workers, policy, forecast or Forecast(LONGEST))
        self.retries = Retries(
            self.samples,
            self.workers,
            self._note,
            max_retries=max_retries,
            max_losses=max_losses,
            missing_after_s=missing_after_s,
            stuck_after_s=stuck_after_s,
        )
        self.version = 0
        self.steps = 0  # of the whole run
        self.started = False
        self.finished = False
        self._plan: Steps | None = None
        self._evaluation: Evaluation | None = None
        self._actions: list[Action] = []
        self._life = ("", 0)  # of the trainer: its id, and the version that it began with
        self.handover = Handover(self.samples, self.workers)
        self.control = Control(self.samples, self.workers)

    def drain(self, now: float) -> list[Action]:
        """Hand out work, and return everything that is to be done since the last call."""
        if self.started and not self.finished:
            if not self.control.paused:
                self._actions += self.handover.hand_over(self.version, now)
                self._actions += self.dispatch.place(self.version, now)
            self._grade(now)
            done = self.version >= self.steps and not self.samples.evaluations()
            if done and self.workers.trainer is not None:
                self.finished = True
                self._actions.append(FinishRun(f"all {self.steps} steps are trained"))
        actions = [*self._actions, *self.samples.take_drops()]
        self._actions = []
        return actions

    # -- the run's position -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """No work is handed out until `start`: the position is about to change."""
        self.started = self.finished = False

    def start(
        self,
        plan: Steps,
        position: int,
        journal: Iterable[JournalEntry],
        now: float,
        evaluation: Evaluation | None = None,
    ) -> None:
        """Begin at `position` trained steps, or be set back to it. `journal`: what the store has of later steps."""
        workers = list(self.workers.by_name.values())
        for worker in workers:
            worker.claims = [*worker.claims, *worker.held]
            for sample in list(worker.held.values()):
                self.workers.release(sample, now)
        self.samples.reset(journal)
        self._plan, self._evaluation, self.steps, self.version = plan, evaluation, plan.steps, position
        self.started, self.finished = True, False
        self.handover.set_back()
        self._open_steps(now)
        for worker in workers:
            if worker.version > position:
                worker.version = -1  # weights of that number will be made anew, perhaps not bit for bit
            self._welcome(worker, now)

    def _open_steps(self, now: float) -> None:
        assert self._plan is not None, "start comes first"
        if self._evaluation is not None and self._evaluation.due(self.version):
            self._open(EVAL + self.version, self._evaluation.ids(self.version), now)
        reach = self.max_staleness + self.samples.run_ahead
        for step in range(self.version, min(self.version + reach + 1, self.steps)):
            if step not in self.samples.open_steps:
                self._open(step, self._plan.samples(step), now)

    def _open(self, step: int, ids: list[SampleId], now: float) -> None:
        self.samples.open(step, ids, StepMeter(now, self.workers.occupancy.read(now)), now)
        self._actions += self.dispatch.opened(self.samples.open_steps[step])
        self._note(step, now)

    # -- workers come and go ------------------------------------------------------------------------------------

    def join(self, join: Join, now: float) -> bool:
        """A worker is here. True: the trainer is at another position than we, `start` is needed."""
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
        if join.role == "trainer":
            if join.life != self._life[0]:
                self._life = (join.life, join.version)
            return self._trainer_joined(join.version, now)
        if join.life and self._life[0] and join.life != self._life[0] and join.version > self._life[1]:
            worker.version = -1  # of a future that was lost: this trainer makes that version anew
        if self.started:
            self._welcome(worker, now)
        return False

    def _trainer_joined(self, version: int, now: float) -> bool:
        self.handover.try_again()
        if not self.started or version not in (self.version, self.version + 1):
            return True
        for worker in self.workers.by_name.values():
            worker.target = -1  # it was told an address that may be gone
        if version == self.version + 1:
            return self.train_done(self.version, now) is None
        for worker in self.workers.by_name.values():
            self._tell_load(worker, now)
        return False

    def _welcome(self, worker: Worker, now: float) -> None:
        claims, worker.claims, worker.target = worker.claims, [], -1
        self._adopt(worker, claims, now)
        self._tell_load(worker, now)

    def leave(self, name: str, now: float) -> None:
        """It says goodbye: what it held goes to others and does not count as a failure."""
        if worker := self.workers.by_name.get(name):
            self._remove(worker, "it left", now, blame="nobody")

    def tick(self, now: float) -> dict[str, list[SampleId]]:
        """Once a second or so. Retries the workers that are lost now, with what each had."""
        lost = [worker for worker in self.workers.by_name.values() if now - worker.seen > self.lost_after_s]
        had = {worker.name: list(worker.held) for worker in lost}
        self.samples.counts["lost"] += len(lost)
        for worker in lost:
            self._remove(worker, f"silent for {now - worker.seen:.0f} s", now)
        for worker in self.workers.by_name.values():
            if worker.resting and now >= worker.rests_until:
                self.workers.rest(worker, False)
            if worker.target != -1 and now - worker.told_at > LOAD_PATIENCE_S:
                worker.target = -1
            self._tell_load(worker, now)
        self._abandon(now)
        self._actions += self.retries.free_stuck(now)
        self.handover.try_again()
        if self.started:
            self.dispatch.look()
            if not self.control.paused:
                self._actions += self.dispatch.move(self.version, now)
            self._actions += self.control.recall(now)
            self.dispatch.offer_all()
        return had

    def _remove(
        self,
        worker: Worker,
        why: str,
        now: float,
        *,
        blame: Blame = "worker",
        keep: frozenset[SampleId] = frozenset(),
    ) -> None:
        """`keep`: what it has still got."""
        self.retries.lost(worker, f"{worker.name}: {why}", now, blame, keep)
        if worker is self.workers.trainer:
            self.handover.failed(now)
        self.workers.remove(worker, now)

    # -- what workers have --------------------------------------------------------------------------------------

    def heartbeat(
        self, name: str, version: int, phase: str, holding: list[Holding], stats: dict[str, float], now: float
    ) -> None:
        """It lives, and tells what it has in hand. Where we differ for long, what it tells is taken for true."""
        worker = self.workers.by_name[name]
        if phase != worker.phase:
            worker.phase, worker.phase_at = phase, now
        worker.seen, worker.holding, worker.stats = now, holding, stats
        if worker.role == "trainer":
            worker.version = version
        if worker.role == "trainer" or not self.started:
            return
        if worker.role == "rollout" and version != worker.version and worker.target == -1:
            self.loaded(name, version, now)
        told = self._progress(worker, holding, now)
        if unknown := told - worker.held.keys():
            self._adopt(worker, sorted(unknown), now)
        if missing := worker.held.keys() - told:
            self.retries.reclaim(worker, missing, now)
        elif worker.missing:
            worker.missing = {}

    def _progress(self, worker: Worker, holding: list[Holding], now: float) -> set[SampleId]:
        parked = set()
        for item in holding:
            if sample := worker.held.get(item.id):
                if item.tokens != sample.tokens:
                    sample.tokens, sample.advanced = item.tokens, now
                    worker.useful = True
                    self.retries.clear(sample)
                if item.parked:
                    parked.add(item.id)
        self.workers.park(worker, parked, now)
        return {item.id for item in holding}

    def parked(self, name: str, ids: Iterable[SampleId], now: float) -> None:
        """Written ahead to the end: they take no slot until newer weights are loaded."""
        if worker := self.workers.by_name.get(name):
            self.workers.park(worker, worker.parked | set(ids), now)

    def release_failed(self, ids: Iterable[SampleId]) -> None:
        """Their worker could not be asked for them: they stay where they are."""
        for id in ids:
            if sample := self.samples.get(id):
                sample.released, sample.goal = 0.0, ""

    def recalled(self, past: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """The store's answer to `Recall`: prompt -> (step, response tokens), oldest first."""
        self.dispatch.remember(past)

    def _adopt(self, worker: Worker, claims: Iterable[SampleId], now: float) -> None:
        """It works on what we did not give it, or gave it in an earlier life. What nobody else has it may keep."""
        free: State = "waiting" if worker.role == "rollout" else "generated"
        cancel: list[SampleId] = []
        for id in claims:
            sample = self.samples.get(id)
            if sample is None:
                cancel.append(id)
            elif sample.state == free and self.dispatch.may_have(worker, id.step, self.version):
                self.samples.move(sample, "assigned", now, worker.name)
                self.workers.hold(worker, (sample,), now)
            elif sample.state in ("waiting", "running", "dropped") and sample.worker != worker.name:
                cancel.append(id)
        if cancel and worker.role == "rollout":
            self._actions.append(Cancel(worker.name, cancel))

    def loaded(self, name: str, version: int, now: float) -> None:
        """New tokens of this worker are of this version."""
        worker = self.workers.by_name[name]
        worker.version = version
        if worker.target == version:
            worker.target = -1
        self.workers.park(worker, set(), now)
        self.workers.refresh(worker)
        self._tell_load(worker, now)

    def load_failed(self, name: str) -> None:
        """It could not be told to load: the next tick tells it again."""
        if worker := self.workers.by_name.get(name):
            worker.target = -1

    def _tell_load(self, worker: Worker, now: float) -> None:
        if worker.role != "rollout" or not self.started or self.workers.trainer is None:
            return
        evaluation = self.samples.open_steps.get(EVAL + worker.version)
        if evaluation is not None and not evaluation.all_generated:
            return  # it is needed as it is
        if worker.version != self.version and worker.target != self.version:
            worker.target, worker.told_at = self.version, now
            self._actions.append(Load(worker.name, self.version))

    # -- reports ------------------------------------------------------------------------------------------------

    def generated(self, name: str, infos: Iterable[SampleInfo], now: float) -> None:
        """The store has these."""
        touched: set[int] = set()
        for info in infos:
            sample = self.samples.get(info.id)
            if sample is None or sample.state not in ("waiting", "running"):
                continue
            if sample.worker and sample.worker != name:
                self._actions.append(Cancel(sample.worker, [info.id]))
            self.workers.release(sample, now)
            if (worker := self.workers.by_name.get(name)) is not None:
                worker.made(info)
            self.retries.acquit(sample)
            sample.length = info.length
            self.samples.counts["tokens"] += info.length
            sample.oldest = min((version for version, _ in info.versions), default=info.id.step)
            sample.drafting, sample.ahead = info.drafting, info.ahead
            self.samples.move(sample, "generated", now, name)
            if info.id.step < EVAL and info.length:
                self.dispatch.forecast.finished(info.id.step, info.id.prompt, info.length)
            self.samples.refuse_stale(sample, now, max((version for version, _ in info.versions), default=None))
            touched.add(info.id.step)
        for step in touched:
            self._note(step, now)

    def scored(self, name: str, scores: Iterable[Score], now: float) -> None:
        """The store has these rewards. One without a reward drops its sample."""
        touched: set[int] = set()
        for score in scores:
            sample = self.samples.get(score.id)
            if sample is None or sample.state not in ("generated", "scoring"):
                continue
            self.workers.release(sample, now)
            self.samples.open_steps[score.id.step].meter.report(score)
            if score.reward is None:
                self.samples.drop(sample, f"not scored: {score.error}", now)
            else:
                sample.reward = score.reward
                sample.points = self._evaluation.points(score) if self._evaluation is not None else None
                self.samples.move(sample, "scored", now, name)
            touched.add(score.id.step)
        for step in touched:
            self._note(step, now)

    def given_back(
        self,
        name: str,
        ids: Iterable[SampleId],
        reason: str,
        now: float,
        *,
        retry: bool = True,
        blame: Blame = "sample",
        moved: bool = False,
    ) -> None:
        """It will not do these, or could not be told to. `retry`: others may.

        `moved`: it was asked to hand them over, and the store has what it wrote of them.
        """
        worker = self.workers.by_name.get(name)
        held = [sample for id in ids if (sample := worker.held.get(id))] if worker else []
        for sample in held:
            if retry:
                sample.handovers += moved
                self.retries.back(sample, f"{name}: {reason}", now, "nobody" if moved else blame)
            else:
                self.retries.drop(sample, reason, now)
        if worker and held and retry and not moved:
            self.workers.rest(worker, True)  # until the next tick, lest it get the same again at once

    # -- the trainer --------------------------------------------------------------------------------------------

    def train_done(self, step: int, now: float) -> dict[str, float] | None:
        """Step trained, the next version is published. Retries our metrics of it; None: we never gave it."""
        open_step = self.samples.open_steps.get(step)
        if open_step is None or step != self.version or not open_step.handed or not self.started:
            return None
        assert self._plan is not None, "a step was opened"
        epoch = {"training/epoch": float(self._plan.epoch(step))}
        row = epoch | open_step.meter.rollout | step_side(open_step.meter, self.handover.last_at, now)
        self.dispatch.closed(step)
        if done := self.samples.finish(step, now):
            self._actions.append(Mark(done, "trained"))
        self.version = step + 1
        self.handover.done(now)
        self._open_steps(now)
        for worker in self.workers.by_name.values():
            self._tell_load(worker, now)
        return row

    # -- evaluations --------------------------------------------------------------------------------------------

    def _grade(self, now: float) -> None:
        """Close the evaluations that are complete, and let workers that waited for them load newer weights."""
        for open_step in self.samples.evaluations():
            version = open_step.step - EVAL
            if open_step.all_generated and version < self.version:
                for worker in self.workers.by_name.values():
                    self._tell_load(worker, now)
            if open_step.complete and self._evaluation is not None:
                row = {
                    **self._evaluation.metrics(open_step.samples.values()),
                    "timing_s/val": now - open_step.meter.opened_at,
                }
                self.samples.forget(open_step.step)
                self._actions.append(Evaluated(version, row))

    def _abandon(self, now: float) -> None:
        """Drop what nobody can sample any more: its version is past, and no worker has it."""
        for open_step in self.samples.evaluations():
            version = open_step.step - EVAL
            able = any(
                worker.role == "rollout" and worker.version == version for worker in self.workers.by_name.values()
            )
            if version < self.version and not able:
                for sample in [one for group in open_step.unassigned["waiting"].values() for one in group]:
                    self.retries.drop(sample, f"no worker has version {version} any more", now)

    # -- what a person says -----------------------------------------------------------------------------------

    def pause_run(self, paused: bool, now: float) -> None:
        """A person's word: hand out nothing, or go on. What is in hand is finished."""
        self.control.pause(paused, now)
        self.dispatch.offer_all()

    def drain_worker(self, name: str, drained: bool, now: float) -> None:
        """A person's word: it gets nothing more, and what it has goes to others. Raises `SteeringError`."""
        self.control.drain(name, drained)
        self._actions += self.control.recall(now)
        self.dispatch.offer_all()

    # -- inside -------------------------------------------------------------------------------------------------

    def _note(self, step: int, now: float) -> None:
        """Write down when the step's rollout, and when its scoring, came to an end."""
        open_step = self.samples.open_steps[step]
        if open_step.meter.generated_at is None and open_step.all_generated:
            open_step.meter.generated(now, self.workers.occupancy.read(now))
        if open_step.meter.complete_at is None and open_step.complete:
            open_step.meter.complete_at = now
