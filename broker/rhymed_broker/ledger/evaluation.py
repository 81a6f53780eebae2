"""Evaluation on held-out prompts: when it is due, which samples it takes, its metrics. Pure, part of the ledger.

The evaluation of policy version v is an open step with the number `evaluation_step(v)`. Its samples are sampled from
version v alone, scored like all others, and never trained. Samples that no worker can generate any more are dropped,
so an evaluation always ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rhymed.core.config import Eval, Reward
from rhymed.core.messages import SampleId, Score
from rhymed.core.steps import evaluated_version, evaluation_step
from rhymed_broker.ledger.actions import Evaluated
from rhymed_broker.ledger.retries import Retries
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Workers
from rhymed_broker.states import Sample


@dataclass(frozen=True)
class Evaluation:
    """The evaluations of a run."""

    datasets: Mapping[str, Sequence[str]]  # name -> ids of its prompts
    steps: int  # of the run: the last version is always evaluated
    every: int = 1
    at_start: bool = True
    samples: int = 1  # k: responses a prompt
    threshold: float = 1.0  # points at which a response is correct
    scorer: str = ""  # the scorer whose points count; empty: the reward counts

    def due(self, version: int) -> bool:
        if version == 0:
            return self.at_start or self.steps == 0
        return version % self.every == 0 or version == self.steps

    def ids(self, version: int) -> list[SampleId]:
        """Prompt after prompt; a prompt of several datasets is sampled once."""
        prompts = dict.fromkeys(prompt for dataset in self.datasets.values() for prompt in dataset)
        step = evaluation_step(version)
        return [SampleId(step, prompt, index) for prompt in prompts for index in range(self.samples)]

    def points(self, score: Score) -> float | None:
        return score.points(self.scorer)

    def metrics(self, samples: Iterable[Sample]) -> dict[str, float]:
        """`val/<dataset>/…` of a complete evaluation. Dropped samples count neither as correct nor as wrong."""
        by_prompt: dict[str, list[Sample]] = {}
        for sample in samples:
            by_prompt.setdefault(sample.id.prompt, []).append(sample)
        row: dict[str, float] = {}
        for name, prompts in self.datasets.items():
            groups = [by_prompt[prompt] for prompt in prompts]
            row |= {f"val/{name}/{key}": value for key, value in self._grade(groups).items()}
        return row

    def _grade(self, groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
        answered = [[sample for sample in group if sample.points is not None] for group in groups]
        scored = [group for group in answered if group]
        flat = [sample for group in scored for sample in group]
        row = {"prompts": float(len(scored)), "dropped": float(sum(map(len, groups)) - len(flat))}
        if not flat:
            return row
        right = [(len(group), sum((sample.points or 0.0) >= self.threshold for sample in group)) for group in scored]
        row[f"acc/mean@{self.samples}"] = fmean(count / size for size, count in right)
        for k in self._ks():
            row[f"acc/pass@{k}"] = fmean(pass_at(k, size, count) for size, count in right)
        row["reward/mean"] = fmean(sample.reward or 0.0 for sample in flat)
        row["response_length/mean"] = fmean(sample.length for sample in flat)
        return row

    def _ks(self) -> list[int]:
        """Powers of two, and the number of samples itself."""
        return sorted(
            {2**power for power in range(self.samples.bit_length()) if 2**power <= self.samples} | {self.samples}
        )


def pass_at(k: int, size: int, right: int) -> float:
    """Unbiased estimate, from `size` responses of which `right` are correct, that one of k is (Chen et al. 2021)."""
    k = min(k, size)
    return 1.0 - math.comb(size - right, k) / math.comb(size, k)


def evaluation_of(eval: Eval, reward: Reward, datasets: Mapping[str, Sequence[str]], steps: int) -> Evaluation | None:
    """As configured, for a run of so many steps; None: there is none."""
    if not eval.every or not datasets:
        return None
    scorers = reward.all
    return Evaluation(
        datasets,
        steps,
        every=eval.every,
        at_start=eval.at_start,
        samples=eval.samples,
        threshold=eval.threshold,
        scorer=scorers[0].label if len(scorers) > 1 else "",
    )


class Evaluations:
    """The evaluations that are open."""

    def __init__(self, samples: Samples, workers: Workers, retries: Retries) -> None:
        self.schedule: Evaluation | None = None  # None: the run has none
        self._samples, self._workers, self._retries = samples, workers, retries

    def points(self, score: Score) -> float | None:
        return self.schedule.points(score) if self.schedule is not None else None

    def generated_before(self, version: int) -> bool:
        """Is one of an older version than this generated? Then workers that kept its weights may load newer ones."""
        evaluations = self._samples.evaluations()
        return any(one.all_generated and evaluated_version(one.step) < version for one in evaluations)

    def close_complete(self, now: float) -> list[Evaluated]:
        evaluated: list[Evaluated] = []
        for open_step in self._samples.evaluations():
            if open_step.complete and self.schedule is not None:
                metrics = self.schedule.metrics(open_step.samples.values())
                row = {**metrics, "timing_s/val": now - open_step.meter.opened_at}
                self._samples.forget(open_step.step)
                evaluated.append(Evaluated(evaluated_version(open_step.step), row))
        return evaluated

    def drop_unreachable(self, version: int, now: float) -> None:
        """Drop samples of a version that is older than the run's, and that no worker has any more."""
        present = {worker.version for worker in self._workers.of_role("rollout")}
        for open_step in self._samples.evaluations():
            evaluated = evaluated_version(open_step.step)
            if evaluated < version and evaluated not in present:
                for sample in [sample for group in open_step.unassigned["waiting"].values() for sample in group]:
                    self._retries.drop(sample, f"no worker has version {evaluated} any more", now)
