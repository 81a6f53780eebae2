"""Steps go to the trainer, and policy versions to the rollout workers. Pure, part of the ledger.

Invariants: the trainer has one step at most; a step that it refused is handed over again at the next tick, or when a
trainer joins, not before. A worker is asked to load a version once, and again only after `engine.PATIENCE_S` or when
the trainer is a new one. Version v means v trained steps. With `colocate`, engines and trainer use the same GPUs in
turns: the trainer gets a step when every rollout worker is asleep, and no worker wakes before that step is trained.
That holds over a restart of the broker, too: what the trainer has, it reports, and workers get time to join again.
With `overlap`, a trainer without a step receives each complete group of its next step at once, each group once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rhymed.core.messages import Join, SampleId
from rhymed.core.steps import evaluation_step
from rhymed_broker.ledger.actions import Begin, Load, Sleep, Train
from rhymed_broker.ledger.meter import rollout_side, step_side
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker, Workers

REFUSAL_S = 400.0  # two refusals that are further apart have nothing to do with each other


class Refusal(NamedTuple):
    """The trainer has refused a step, perhaps several times."""

    since: float
    last: float
    why: str


class Handover:
    def __init__(self, samples: Samples, workers: Workers, *, colocate: bool = False, overlap: bool = False) -> None:
        self.refusal: Refusal | None = None
        self.last_at: float | None = None  # when the last step was trained
        self.training = -1  # step that the trainer reports to have, perhaps since before a restart; -1: none
        self._samples, self._workers, self._colocate, self._overlap = samples, workers, colocate, overlap
        self._step: int | None = None  # that the trainer has
        self._ready = True  # the trainer has not refused a step since the last tick
        self._join_until = 0.0  # until then workers of before a restart may be awake and not have joined
        self._life = ("", 0)  # of the trainer: its id, and the version that it began with

    def reset(self, join_until: float) -> None:
        self._step, self._ready, self.last_at, self._join_until = None, True, None, join_until

    def joined(self, join: Join, worker: Worker) -> None:
        """Weights that an earlier trainer published after the position at which this one began do not count."""
        life, _ = self._life
        if join.role == "trainer":
            self._ready, self.training = True, join.training
            for open_step in self._samples.open_steps.values():
                open_step.sent = 0
            if join.life != life:
                self._life = (join.life, join.version)
        elif not self.counts(join.life, join.version):
            worker.version = -1

    def counts(self, of: str, version: int) -> bool:
        """Whether these weights are of the trainer that is here, or older than it."""
        life, begun_at = self._life
        return not (of and life and of != life and version > begun_at)

    def try_again(self) -> None:
        self._ready = True

    def hand_over(self, version: int, now: float) -> list[Train] | list[Sleep] | list[Begin]:
        """The next step, if its groups are complete and final, the trainer is free, and its GPUs are.

        With `overlap`: before that, the groups that are.
        """
        open_step, trainer = self._complete(version), self._workers.trainer
        if trainer is None or self._step is not None or not self._ready:
            return []
        if open_step is None:
            return self._begin(version, trainer)
        engines = self._workers.of_role("rollout")
        awake = [worker for worker in engines if worker.engine.state != "asleep"]
        if self._colocate and (awake or not engines or now < self._join_until):
            return self._sleep(awake, now)
        self._step = open_step.step
        open_step.handed = True
        open_step.meter.handed_at = now
        ready = [sample for sample in open_step.samples.values() if sample.state == "scored"]
        self._samples.move_all(ready, "handed", now, trainer.name)
        open_step.meter.rollout = rollout_side(open_step.step, open_step.meter, [*open_step.samples.values()])
        groups: dict[str, list[SampleId]] = {}  # each in the order of its indices
        for sample in ready:
            groups.setdefault(sample.id.prompt, []).append(sample.id)
        ids = [id for prompt in sorted(groups) for id in groups[prompt]]
        return [Train(trainer.name, open_step.step, ids, open_step.meter.rollout)]

    def _begin(self, version: int, trainer: Worker) -> list[Begin]:
        """Groups of the next step that are complete and final, while others are not. Each one once."""
        open_step = self._samples.open_steps.get(version)
        if not self._overlap or open_step is None or self.training == version:
            return []
        prompts = open_step.completed[open_step.sent :]
        if not prompts or any(worker.engine.target == version for worker in self._workers.of_role("rollout")):
            return []  # they may read the weights from the memory that the trainer needs then
        open_step.sent = len(open_step.completed)
        groups = [open_step.group(prompt) for prompt in prompts if prompt not in open_step.flat]
        ids = [sample.id for group in groups for sample in group if sample.state == "scored"]
        return [Begin(trainer.name, version, ids)] if ids else []

    def _complete(self, version: int) -> OpenStep | None:
        """The step that this version trains next, if nothing is left to generate for it or with this version."""
        open_step, evaluation = (self._samples.open_steps.get(step) for step in (version, evaluation_step(version)))
        if self._colocate and evaluation is not None and not evaluation.all_generated:
            return None
        return open_step if open_step is not None and open_step.drawn is not None else None

    def _sleep(self, workers: Iterable[Worker], now: float) -> list[Sleep]:
        """Requests to sleep, for those of these workers that have not had one lately."""
        sleeps: list[Sleep] = []
        for worker in workers:
            if worker.engine.sleep(now):
                self._workers.refresh(worker)
                sleeps.append(Sleep(worker.name))
        return sleeps

    def slept(self, name: str) -> None:
        """The worker's engine has freed its memory."""
        if worker := self._workers.by_name.get(name):
            worker.engine.slept()
            self._workers.refresh(worker)

    def row(self, open_step: OpenStep, epoch: int, now: float) -> dict[str, float]:
        """The broker's metrics of a step that was trained now."""
        side = step_side(open_step.meter, self.last_at, now)
        return {"training/epoch": float(epoch), **open_step.meter.rollout, **side}

    def done(self, now: float) -> None:
        self._step, self.last_at, self.refusal = None, now, None

    def failed(self, now: float, why: str = "") -> None:
        """The trainer did not take the step, or is gone."""
        if why:
            before = self.refusal
            since = before.since if before and now - before.last <= REFUSAL_S else now
            self.refusal = Refusal(since, now, why)
        self._step, self._ready = None, False
        self._samples.move_all(list(self._samples.queues["training"]), "returned", now)

    def refused_s(self, now: float) -> float:
        """Seconds since the trainer started to refuse steps; 0 if it accepts them."""
        refusal = self.refusal
        return 0.0 if refusal is None or now - refusal.last > REFUSAL_S else now - refusal.since

    def load(self, workers: Iterable[Worker], version: int, now: float) -> list[Load]:
        """Requests to load `version`, for those of these workers that need one and are free to load."""
        loads: list[Load] = []
        busy = self._step is not None or self.training == version
        if self._colocate and (busy or self._complete(version) is not None):
            return loads  # the GPUs are the trainer's
        for worker in workers:
            if worker.role != "rollout" or self._workers.trainer is None:
                continue
            evaluation = self._samples.open_steps.get(evaluation_step(worker.version))
            if evaluation is not None and not evaluation.all_generated:
                continue  # it needs the weights that the worker has
            engine = worker.engine
            if (worker.version != version or engine.state in ("asleep", "waking")) and engine.target != version:
                engine.load(version, now)
                loads.append(Load(worker.name, version))
        return loads

    def undelivered(self, name: str) -> None:
        """The request to load or to sleep was not delivered: the next tick repeats it."""
        if worker := self._workers.by_name.get(name):
            self._give_up(worker)

    def _give_up(self, worker: Worker) -> None:
        worker.engine.give_up()
        self._workers.refresh(worker)  # it may be awake

    def loaded(self, worker: Worker, version: int, now: float) -> None:
        worker.version = version
        worker.engine.loaded(version, now)
        self._workers.park(worker, set(), now)
        self._workers.refresh(worker)

    def expire_loads(self, now: float) -> None:
        """Forget requests to load that were not followed in time."""
        for worker in self._workers:
            if worker.engine.late(now):
                self._give_up(worker)
