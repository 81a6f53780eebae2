"""A step's samples, for every learner: whether they keep the staleness contract, which are trained on, their metrics.

Pure: numpy only. Knows no learner.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from rhymed.core.errors import StalenessBroken
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.turns import problem, row_lengths, turn_metrics

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""(parts done, parts of the step). Called on the learner's thread; an error that it raises ends the step."""


def check_staleness(step: int, samples: Sequence[StoredSample], allowed: int) -> None:
    """Raises `StalenessBroken` for a sample with a token of older or newer weights than the contract allows."""
    for sample in samples:
        versions = [version for version, _ in sample.info.versions] or [step]
        if not step - allowed <= min(versions) <= max(versions) <= step:
            raise StalenessBroken(
                f"sample {sample.info.id} has tokens of versions {min(versions)} to {max(versions)}; step {step + 1}"
                f" with schedule.max_staleness = {allowed} takes versions {step - allowed} to {step}"
            )


def within_staleness(step: int, samples: Sequence[StoredSample], allowed: int) -> list[StoredSample]:
    """Those that the contract allows. Others are logged as errors: their worker reported other versions than stored.

    The broker drops what it knows to be too old, so a false report alone brings one here. It must not end the run.
    """
    kept = []
    for sample in samples:
        try:
            check_staleness(step, [sample], allowed)
            kept.append(sample)
        except StalenessBroken as error:
            log.error("left out of training: %s", error)
    return kept


def readable(
    step: int,
    samples: Sequence[StoredSample],
    allowed: int,
    vocabulary: int,
    longest_prompt: int,
    longest_response: int,
) -> list[StoredSample]:
    """Of those `within_staleness`, the ones that the model can read and has memory for. Others are logged as errors.

    No engine writes others, but whoever has a key of the role rollout can, and they would end the trainer each time.
    """
    kept = []
    for sample in within_staleness(step, samples, allowed):
        prompt, response = sample.prompt_tokens, sample.tokens
        assert prompt is not None, "the learner asks for prompts' tokens"
        highest = max(int(prompt.max(initial=0)), int(response.max(initial=0)))
        why = problem(sample.info)
        if not why and highest >= vocabulary:
            why = f"token {highest}, the model has {vocabulary}"
        why = why or _too_long(sample, longest_prompt, longest_response)
        if not why:
            kept.append(sample)
        else:
            log.error("left out of training: sample %s has %s", sample.info.id, why)
    return kept


def _too_long(sample: StoredSample, longest_prompt: int, longest_response: int) -> str:
    """Each of its rows has to fit the model. Empty: all do."""
    prompt = sample.info.prompt_length
    first, *others = row_lengths(sample.info)
    if not 1 <= prompt <= longest_prompt or first - prompt > longest_response:
        limits = f"allowed are 1 to {longest_prompt} and at most {longest_response}"
        return f"{prompt} tokens of prompt and {first - prompt} of response, {limits}"
    longest = max(others, default=0)
    if longest > longest_prompt + longest_response:
        return f"a row of {longest} tokens, allowed are {longest_prompt} + {longest_response}"
    return ""


def scored(sample: StoredSample) -> bool:
    return sample.info.reward is not None and math.isfinite(sample.info.reward)


def scored_groups(samples: Sequence[StoredSample], least: int = 2) -> tuple[list[StoredSample], int]:
    """Samples with a finite reward whose group has at least so many of them, and the number of groups left out."""
    counts = dict.fromkeys((sample.info.id.prompt for sample in samples), 0)
    for sample in samples:
        counts[sample.info.id.prompt] += scored(sample)
    chosen = [sample for sample in samples if scored(sample) and counts[sample.info.id.prompt] >= least]
    return chosen, sum(count < least for count in counts.values())


def groups_of(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    """By prompt."""
    groups: dict[str, list[StoredSample]] = {}
    for sample in samples:
        groups.setdefault(sample.info.id.prompt, []).append(sample)
    return groups


def flat_groups(samples: Sequence[StoredSample]) -> float:
    """Share of the groups whose rewards are all equal: they have no gradient."""
    groups = groups_of(samples).values()
    return sum(len({sample.info.reward for sample in group}) == 1 for group in groups) / max(1, len(groups))


def sample_metrics(step: int, samples: Sequence[StoredSample], chosen: Sequence[StoredSample]) -> dict[str, float]:
    """Metrics of the samples of step `step`. `chosen`: those that are trained on."""
    if not samples:
        return {}
    rewards = np.array([sample.info.reward for sample in samples if scored(sample)])
    lengths = np.array([sample.info.length for sample in samples])
    cut = [sample.info.finish_reason == "length" for sample in samples]
    oldest = [min((version for version, _ in sample.info.versions), default=step) for sample in samples]
    metrics = {
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/clip_ratio": float(np.mean(cut)),
        "staleness/max": float(max(step - version for version in oldest)),
        "actor/samples": float(len(chosen)),
    }
    metrics |= turn_metrics(samples)
    if len(rewards):
        metrics |= {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
        metrics["reward/flat_groups"] = flat_groups(chosen)
    return metrics
