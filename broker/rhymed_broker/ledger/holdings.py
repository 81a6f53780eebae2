"""What workers report, compared with what they were assigned. Pure, part of the ledger.

Invariant: only the holder of a sample moves it; a report of any other worker is counted (`unheld`) and changes
nothing. A worker that reports
a sample that it was not assigned (before the broker restarted, it was) keeps it if no other worker has it, and is
asked to cancel it otherwise. A sample that its worker does not report for `missing_after_s` goes to another worker.
Knows no steps but through their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rhymed.core.messages import Call, Drafting, Holding, Role, SampleId, SampleInfo, Score
from rhymed.core.steps import is_evaluation
from rhymed_broker.ledger.actions import Cancel
from rhymed_broker.ledger.dispatch import Dispatch
from rhymed_broker.ledger.retries import Retries
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.states import Sample, State

FREE: dict[Role, State] = {"rollout": "waiting", "environment": "turned", "reward": "generated", "trainer": "scored"}
"""The state in which samples wait for a worker of this role."""

SURVIVAL = 0.02  # weight of a sample's share of tokens written ahead that were kept
Points = Callable[[Score], float | None]


class Holdings:
    def __init__(self, samples: Samples, workers: Workers, retries: Retries, dispatch: Dispatch) -> None:
        self._samples, self._workers, self._retries, self._dispatch = samples, workers, retries, dispatch

    def compare(self, worker: Worker, holding: list[Holding], version: int, now: float) -> list[Cancel]:
        """A heartbeat's list. `version`: of the run."""
        self._progress(worker, holding, now)
        reported = {item.id for item in holding}
        cancels: list[Cancel] = []
        if unknown := reported - worker.held.keys():
            cancels = self.adopt(worker, sorted(unknown), version, now)
        if missing := worker.held.keys() - reported:
            self._retries.reclaim(worker, missing, now)
        elif worker.missing:
            worker.missing = {}
        return cancels

    def _progress(self, worker: Worker, holding: list[Holding], now: float) -> None:
        parked, made = set(), list[int]()  # tokens of samples that advanced here before, too
        for item in holding:
            if sample := worker.held.get(item.id):
                if item.tokens != sample.tokens:
                    if sample.since < worker.beat[0] <= sample.advanced and sample.tokens < item.tokens:
                        made.append(item.tokens - sample.tokens)
                    sample.tokens, sample.before, sample.advanced = item.tokens, item.before, now
                    worker.useful = True
                    self._retries.clear(sample)
                if item.parked:
                    parked.add(item.id)
        before, worker.beat = worker.beat, (now, worker.version, len(holding) - len(parked))
        if worker.role == "rollout" and before[1] == worker.version:  # else it loaded weights in between
            self._dispatch.pace.observe(worker.name, (before[2] + worker.beat[2]) / 2, made, now - before[0])
        self._workers.park(worker, parked, now)

    def adopt(self, worker: Worker, claims: Iterable[SampleId], version: int, now: float) -> list[Cancel]:
        """The worker holds samples that the ledger did not assign, or assigned before a restart.

        It keeps those that no other worker holds; the rest are cancelled.
        """
        free = FREE[worker.role]
        cancel: list[SampleId] = []
        for id in claims:
            sample = self._samples.get(id)
            if sample is None:
                cancel.append(id)
            elif sample.state == free and self._dispatch.may_have(worker, id.step, version):
                self._samples.move(sample, "assigned", now, worker.name)
                self._workers.hold(worker, (sample,), now)
            elif sample.state in ("waiting", "running", "filtered", "dropped") and sample.worker != worker.name:
                cancel.append(id)
        return [Cancel(worker.name, cancel)] if cancel and worker.role == "rollout" else []

    def _held(self, name: str, id: SampleId, states: tuple[State, State]) -> Sample | None:
        """A sample that the worker holds. None: the report changes nothing. `states`: those that it is about."""
        sample = self._samples.get(id)
        if sample is None or sample.state not in states:
            return None  # repeated, or late
        if not name or sample.worker != name:
            self._samples.counts["unheld"] += 1
            return None
        return sample

    def called(self, name: str, ids: Iterable[SampleId], calls: Iterable[Sequence[Call]]) -> None:
        """The calls that each of these samples made, which an environment worker is about to report otherwise."""
        for id, made in zip(ids, calls, strict=False):
            sample = self._samples.get(id)
            if sample is not None and sample.worker == name and sample.state in ("turned", "acting"):
                self._samples.open_steps[id.step].meter.tools.add(made)

    def generated(self, name: str, infos: Iterable[SampleInfo], now: float) -> None:
        """Its worker has stored these samples."""
        steps: set[int] = set()
        for info in infos:
            sample = self._written(name, info, now, whole=True)
            if sample is not None:
                self._generated(sample, info, now, name)
                steps.add(info.id.step)
        self._note(steps, now)

    def turned(self, name: str, infos: Iterable[SampleInfo], now: float) -> None:
        """A rollout worker has stored a turn of each of these samples: their environments answer next."""
        for info in infos:
            sample = self._written(name, info, now)
            if sample is not None:
                sample.author, sample.drafting = name, _sum(sample.drafting, info.drafting)
                sample.ahead = sample.ahead[0] + info.ahead[0], sample.ahead[1] + info.ahead[1]
                sample.before = sample.tokens
                sample.earlier += info.length
                self._samples.counts["tokens"] += info.length
                self._samples.move(sample, "turned", now, name)

    def answered(self, name: str, ids: Iterable[SampleId], now: float) -> None:
        """An environment worker has stored its answers: each sample's next turn is best written by the worker that
        wrote the last one, which may have its keys and values."""
        for id in ids:
            sample = self._held(name, id, ("turned", "acting"))
            if sample is None:
                continue
            self._workers.by_name[name].useful = True
            self._workers.release(sample, now)
            self._retries.succeeded(sample)
            sample.begun = True
            self._samples.move(sample, "answered", now, name)
            if sample.author in self._workers.by_name:
                sample.goal = sample.author
                self._samples.moving[sample] = None

    def _written(self, name: str, info: SampleInfo, now: float, *, whole: bool = False) -> Sample | None:
        """The sample, which its worker no longer holds; None: it changes nothing. Rollout workers write turns;
        a `whole` sample comes from its environment worker, if the run has environments."""
        worker, turns = self._workers.by_name.get(name), self._samples.rules.environment
        acts = worker is not None and worker.role == "environment"
        if acts != (whole and turns) or not (whole or turns):
            self._samples.counts["unheld"] += 1
            return None
        sample = self._held(name, info.id, ("turned", "acting") if acts else ("waiting", "running"))
        if sample is not None:
            self._workers.by_name[name].finished(info)
            self._workers.release(sample, now)
            self._retries.succeeded(sample)
        return sample

    def _survived(self, info: SampleInfo) -> None:
        written, kept = info.ahead
        if written:
            self._samples.survival += SURVIVAL * (kept / written - self._samples.survival)

    def _generated(self, sample: Sample, info: SampleInfo, now: float, name: str) -> None:
        versions = [version for version, _ in info.versions]
        sample.length, sample.learned = info.length, info.learned
        sample.oldest = min(versions, default=info.id.step)
        if not info.turns:  # else its turns were counted when they were reported
            sample.drafting, sample.ahead = info.drafting, info.ahead
            self._samples.counts["tokens"] += info.length
        self._survived(info)
        self._samples.move(sample, "generated", now, name)
        if not is_evaluation(info.id.step) and info.learned:
            self._dispatch.forecast.finished(info.id.step, info.id.prompt, info.learned)
        self._samples.refuse_stale(sample, now, max(versions, default=None))

    def scored(self, name: str, scores: Iterable[Score], tested: Points, trained: Points, now: float) -> None:
        """The store has these rewards. A score without a reward drops its sample, unless the store lacks it.

        `tested`, `trained`: the points of samples of evaluations, and of all others.
        """
        steps: set[int] = set()
        for score in scores:
            sample = self._held(name, score.id, ("generated", "scoring"))
            if sample is None:
                continue
            if score.unstored:
                self._retries.unstored(sample, now)
                continue
            self._workers.release(sample, now)
            self._samples.open_steps[score.id.step].meter.report(score)
            if score.reward is None:
                self._samples.drop(sample, f"not scored: {score.error}", now)
            else:
                points = tested if is_evaluation(score.id.step) else trained
                sample.reward, sample.points = score.reward, points(score)
                self._samples.move(sample, "scored", now, name)
            steps.add(score.id.step)
        self._note(steps, now)

    def parked(self, name: str, ids: Iterable[SampleId], now: float) -> None:
        """Samples are written ahead to the end: they use no slot until newer weights are loaded."""
        if worker := self._workers.by_name.get(name):
            self._workers.park(worker, worker.parked | set(ids), now)

    def _note(self, steps: Iterable[int], now: float) -> None:
        for step in steps:
            self._samples.open_steps[step].note(now, self._workers.occupancy)


def _sum(first: Drafting | None, second: Drafting | None) -> Drafting | None:
    """Of two turns; a turn without a report adds nothing."""
    if first is None or second is None:
        return first or second
    return Drafting(*(getattr(first, name) + getattr(second, name) for name in Drafting.__struct_fields__))
