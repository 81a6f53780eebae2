"""The gradient of a step, group by group, in the order in which groups become complete.

Each group is computed by itself, and the step's gradient is their sum in fixed point, so its bits are a function of
the step's samples: not of what was complete when, nor of what was computed before the step was handed over. If a
group has other samples in the step than it had before, all groups are computed again: a sum cannot be undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.algorithms import Recipe
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.batch import kept
from rhymed_workers.trainer.gradients import Gradients
from rhymed_workers.trainer.overlap.fixed import FixedSum
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks import Alone
from rhymed_workers.trainer.samples import Progress, groups_of, scored_groups
from rhymed_workers.trainer.tokenstats import Sums


@dataclass(frozen=True)
class Part:
    """One group, computed."""

    samples: list[StoredSample]  # those that are trained on
    tokens: int  # of the policy
    kept: int  # of these, in the loss
    sums: Sums
    metrics: dict[str, float]
    passes: int  # of all ranks
    seconds: float


class GroupGradients:
    def __init__(
        self,
        gradients: Gradients,
        recipe: Recipe,
        policy: Policy,
        ranks: Alone,
        *,
        samples: int,
        longest: int,
    ) -> None:
        """`samples`: of a step; `longest`: limit of response tokens. Sums are divided by them, so they stay small."""
        self._gradients, self._recipe, self._policy, self._ranks = gradients, recipe, policy, ranks
        self._sum = FixedSum(policy.trained())
        sums_tokens = recipe.aggregation in ("token-mean", "seq-mean-token-sum")
        self._unit = samples * (longest if sums_tokens else 1)
        self._parts: dict[str, Part] = {}  # by prompt
        self._step = -1  # that they are of

    def begin(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> None:
        """Whole groups of step `step`, while others of it are still generated. Those that are known are left out."""
        if step != self._step:
            self._forget(step)
        self._compute(groups_of(scored_groups(samples, self._recipe.least_group)[0]), progress)

    def finish(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        """The gradient of all samples of the step becomes the parameters' `grad`.

        `samples`: those that are trained on, group after group. Returns their sums with the step's loss.
        """
        groups = groups_of(samples)
        if step != self._step or not all(_same(groups.get(name), part) for name, part in self._parts.items()):
            self._forget(step)
        early = list(self._parts.values())
        self._compute(groups, progress)
        parts = [self._parts[prompt] for prompt in groups]
        factor = self._unit / max(1, sum(self._size(part.samples, part.kept) for part in parts))
        self._sum.put(factor)
        sums = Sums.of([part.sums for part in parts])
        sums.loss = sums.loss * factor
        if not any(part.passes for part in parts):
            self._gradients.compare(samples, sums)
        sums.together(self._ranks)
        sums.extra |= _means(parts) | _overlap(early, parts)
        self._parts, self._step = {}, -1
        return sums

    def _forget(self, step: int) -> None:
        """What was computed; what follows is of this step."""
        self._parts, self._step = {}, step
        self._sum.clear()

    def _compute(self, groups: Mapping[str, list[StoredSample]], progress: Progress) -> None:
        """Those of these groups that are not known. Progress is in tokens."""
        missing = {prompt: group for prompt, group in groups.items() if prompt not in self._parts}
        total, done = sum(sample.info.learned for group in missing.values() for sample in group), 0

        def computed(tokens: int) -> None:
            nonlocal done
            done += tokens
            progress(min(done, total), total)

        for prompt, group in missing.items():
            self._parts[prompt] = self._part(group, computed)
        progress(total, total)

    def _part(self, group: list[StoredSample], computed: Callable[[int], None]) -> Part:
        """Adds the group's gradient to the sum. `computed`: is called before each pass, with its tokens."""
        started = time.perf_counter()
        batch, sums = self._gradients.assemble(group), Sums()
        tokens, kept_tokens = len(batch.sample_N), int(batch.lengths_B.cpu()[kept(group, self._recipe)].sum())
        batch = replace(batch, weights_N=batch.weights_N * (self._size(group, kept_tokens) / self._unit))
        try:
            for update in batch.updates:
                for micro, counts in self._ranks.share(update):
                    computed(len(micro.flat_N))
                    if not counts:
                        self._gradients.follow(micro)
                        continue
                    self._gradients.accumulate(micro, batch, sums)
                    sums.computed += micro.tokens
        except BaseException:
            self._forget(-1)  # the parameters have a part of it
            raise
        self._sum.take()
        passes, seconds = sum(map(len, batch.updates)), time.perf_counter() - started
        return Part(group, tokens, kept_tokens, sums, batch.metrics, passes, seconds)

    def _size(self, group: Sequence[StoredSample], kept_tokens: int) -> int:
        """What the mean of the loss over the step counts of a group, see `token_weights`."""
        return kept_tokens if self._recipe.aggregation == "token-mean" else len(group)


def _same(group: Sequence[StoredSample] | None, part: Part) -> bool:
    return (
        group is not None
        and len(group) == len(part.samples)
        and all(_equal(one, other) for one, other in zip(group, part.samples, strict=True))
    )


def _equal(one: StoredSample, other: StoredSample) -> bool:
    arrays = ("tokens", "logprobs", "floors", "prompt_tokens")
    same = all(_equal_arrays(getattr(one, name), getattr(other, name)) for name in arrays)
    return same and all(getattr(one, name) == getattr(other, name) for name in ("info", "parts", "token_rewards"))


def _equal_arrays(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other, equal_nan=True)


def _means(parts: Sequence[Part]) -> dict[str, float]:
    """The groups' metrics over all samples or tokens of the step."""
    counts = {
        "reward/overlong_penalty": [len(part.samples) for part in parts],
        "actor/kl": [part.kept for part in parts],
    }
    found = {}
    for name, of_parts in counts.items():
        if any(name in part.metrics for part in parts):
            values = [part.metrics.get(name, 0.0) for part in parts]
            found[name] = float(np.dot(values, of_parts)) / max(1, sum(of_parts))
    return found


def _overlap(early: Sequence[Part], parts: Sequence[Part]) -> dict[str, float]:
    """How much was computed before the step was handed over."""
    tokens = sum(part.tokens for part in parts)
    return {
        "timing_s/overlap": sum(part.seconds for part in early),
        "actor/overlap_ratio": sum(part.tokens for part in early) / max(1, tokens),
    }
