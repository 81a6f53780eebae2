"""Evaluation on held-out prompts: when it is due, which samples it takes, what their rewards say. Pure.

The evaluation of policy version v is an open step like any other, numbered `EVAL + v`. Its samples are sampled from
version v alone, scored like all others, and never trained. Knows nothing of workers, nor of the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rhymed.config import Config
from rhymed.messages import EVAL, SampleId, Score
from rhymed_broker.states import Sample


@dataclass(frozen=True)
class Evaluation:
    datasets: Mapping[str, Sequence[str]]  # name -> ids of its prompts
    steps: int  # of the run: the last version is always evaluated
    every: int = 1
    at_start: bool = True
    samples: int = 1  # k: responses a prompt
    threshold: float = 1.0  # points from which a response is right
    scorer: str = ""  # of several, the one whose points count; empty: the reward

    def due(self, version: int) -> bool:
        if version == 0:
            return self.at_start or self.steps == 0
        return version % self.every == 0 or version == self.steps

    def ids(self, version: int) -> list[SampleId]:
        """Prompt after prompt; one that several datasets have is asked once."""
        prompts = dict.fromkeys(prompt for dataset in self.datasets.values() for prompt in dataset)
        return [SampleId(EVAL + version, prompt, index) for prompt in prompts for index in range(self.samples)]

    def points(self, score: Score) -> float | None:
        return score.parts.get(self.scorer, score.reward)

    def metrics(self, samples: Iterable[Sample]) -> dict[str, float]:
        """`val/<dataset>/…` of a complete evaluation. What was dropped counts neither as right nor as wrong."""
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
        told = [group for group in answered if group]
        flat = [sample for group in told for sample in group]
        row = {"prompts": float(len(told)), "dropped": float(sum(map(len, groups)) - len(flat))}
        if not flat:
            return row
        right = [(len(group), sum((sample.points or 0.0) >= self.threshold for sample in group)) for group in told]
        row[f"acc/mean@{self.samples}"] = fmean(count / size for size, count in right)
        for k in self._ks():
            row[f"acc/pass@{k}"] = fmean(pass_at(k, size, count) for size, count in right)
        row["reward/mean"] = fmean(sample.reward or 0.0 for sample in flat)
        row["response_length/mean"] = fmean(sample.length for sample in flat)
        return row

    def _ks(self) -> list[int]:
        """Powers of two, and the whole number of samples."""
        return sorted(
            {2**power for power in range(self.samples.bit_length()) if 2**power <= self.samples} | {self.samples}
        )


def pass_at(k: int, size: int, right: int) -> float:
    """Unbiased estimate that one of k responses is right, of `size` of which `right` are (Chen et al. 2021)."""
    k = min(k, size)
    return 1.0 - math.comb(size - right, k) / math.comb(size, k)


def load_evaluation(config: Config, datasets: Mapping[str, Sequence[str]], steps: int) -> Evaluation | None:
    """The evaluation that the configuration asks for during a run of so many steps; None: none."""
    wanted = config.eval
    if not wanted.every or not datasets:
        return None
    scorers = config.reward.all
    return Evaluation(
        datasets,
        steps,
        every=wanted.every,
        at_start=wanted.at_start,
        samples=wanted.samples,
        threshold=wanted.threshold,
        scorer=scorers[0].label if len(scorers) > 1 else "",
    )
