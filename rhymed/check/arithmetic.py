"""The arithmetic of a run: prompts, samples, steps, optimizer steps, passes. Pure.

Mirrors `rhymed_broker.plan` (steps) and `trainer.policy.packing` (packing); a test holds it against both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhymed.check.report import Section
from rhymed.core.config import Config, Eval, Rollout, Trainer
from rhymed.core.text import counted
from rhymed_workers.trainer.policy.grades import Grade


@dataclass(frozen=True)
class Workload:
    prompts: int  # in the dataset
    samples: int  # per step
    generated: int  # per step, with those of all groups that dynamic sampling may replace
    steps: int
    passes: int  # forward and backward, per step, if all responses have the maximum length
    pass_tokens: int  # of the largest pass
    width: int  # tokens of its longest row
    grade: Grade | None  # of the model; None: not known, and taken to be packed


def workload(
    rollout: Rollout, trainer: Trainer, prompts: int, prompt_length: int, grade: Grade | None = None
) -> Workload:
    per_step = rollout.prompts_per_step
    steps = trainer.epochs * prompts // per_step
    replaced = min(trainer.dynamic_sampling.most_refills(per_step), max(0, prompts - per_step))
    passes = packed(rollout, trainer, prompt_length, grade)
    largest = max(passes, key=sum)
    return Workload(
        prompts=prompts,
        samples=per_step * rollout.group_size,
        generated=(per_step + replaced * trainer.filters_groups) * rollout.group_size,
        steps=min(steps, trainer.steps) if trainer.steps else steps,
        passes=len(passes),
        pass_tokens=sum(largest),
        width=max(largest),
        grade=grade,
    )


def packed(rollout: Rollout, trainer: Trainer, prompt_length: int, grade: Grade | None = None) -> list[list[int]]:
    """Row lengths of every pass of a step, if all responses have the maximum length."""
    samples = rollout.prompts_per_step * rollout.group_size
    updates, group = min(trainer.minibatches, samples), rollout.group_size
    apart = grade not in (None, Grade.PACKED)
    fit = 1 if apart else max(1, (trainer.micro_tokens - prompt_length) // rollout.max_response_length)
    ends = [samples * number // updates for number in range(updates + 1)]
    passes: list[list[int]] = []
    for first, last in itertools.pairwise(ends):
        parts = [min(last, start + group) - max(first, start) for start in range(0, samples, group)]
        groups = [
            [prompt_length + min(fit, part - start) * rollout.max_response_length for start in range(0, part, fit)]
            for part in parts
        ]
        for rows in groups if trainer.overlap else [list(itertools.chain(*groups))]:
            passes += _together(rows, 0 if grade is Grade.ALONE else trainer.micro_tokens)
    return passes


def _together(rows: Sequence[int], most: int) -> list[list[int]]:
    """Rows of these lengths in passes of at most so many tokens."""
    passes: list[list[int]] = []
    for row in sorted(rows, reverse=True):
        if passes and sum(passes[-1]) + row <= most:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes


def describe(config: Config, load: Workload, held_out: Sequence[int]) -> Section:
    """`held_out`: number of prompts of each evaluation dataset."""
    rollout, trainer = config.rollout, config.trainer
    section = Section("batch")
    cut = f", cut at trainer.steps = {trainer.steps}" if trainer.steps == load.steps else ""
    section.add(
        "steps",
        f"{load.prompts:,} prompts, {rollout.prompts_per_step} per step, {counted(trainer.epochs, 'epoch')}:"
        f" {counted(load.steps, 'step')}{cut}",
    )
    samples, generated = load.steps * load.samples, load.steps * load.generated
    replaced = f", with those of replaced groups at most {generated:,}" if generated > samples else ""
    section.add(
        "samples",
        f"{rollout.prompts_per_step} prompts x {rollout.group_size} (group_size) = {load.samples} per step,"
        f" {samples:,} in all{replaced}, at most {generated * rollout.max_response_length:,} response tokens",
    )
    section.add(
        "training",
        f"{counted(trainer.minibatches, 'optimizer step')} per step, on {load.samples // trainer.minibatches} samples"
        f" each; at most {counted(load.passes, 'pass', 'passes')}, the largest of {load.pass_tokens:,} tokens"
        f" (trainer.micro_tokens = {trainer.micro_tokens:,})",
    )
    if load.grade is not None:
        section.add("sequences", load.grade.value)
    if config.eval.every:
        section.add("evaluation", _evaluation(config.eval, load, held_out))
    section.warnings += _warnings(rollout, trainer, config.eval, load)
    return section


def _evaluation(eval: Eval, load: Workload, held_out: Sequence[int]) -> str:
    each = sum(held_out) * eval.samples
    times = math.ceil(load.steps / eval.every) + eval.at_start
    share = times * each / max(1, load.steps * load.samples)
    return (
        f"{sum(held_out):,} prompts x {eval.samples} = {each:,} responses, {times} times: {times * each:,},"
        f" {share:.0%} of the training samples"
    )


def _warnings(rollout: Rollout, trainer: Trainer, eval: Eval, load: Workload) -> Iterator[str]:
    longest = rollout.max_prompt_length + rollout.max_response_length
    if longest > trainer.micro_tokens:
        yield (
            f"trainer.micro_tokens = {trainer.micro_tokens} is less than one sample at full length"
            f" (max_prompt_length + max_response_length = {longest}): such a sample is a pass of its own and takes"
            " more memory than micro_tokens allows"
        )
    if trainer.warmup_steps > load.steps:
        yield (
            f"trainer.warmup_steps = {trainer.warmup_steps}, but the run has {counted(load.steps, 'step')}:"
            " trainer.lr is never reached"
        )
    recipe = trainer.recipe
    if rollout.untold_cuts and (recipe.correction != "none" or recipe.loss == "dppo"):
        weighting, cure = "trainer.correction", ", or set trainer.correction = 'none'"
        if recipe.loss == "dppo":
            weighting, cure = "trainer.loss", ""
        yield (
            f"{rollout.cuts} with {rollout.silent}: the engine's probabilities are among the tokens that are kept,"
            f" the trainer's among all: mismatch_kl is not 0, and {weighting} weights each token by too little, the"
            f" share that was kept: set rollout.sampler = 'keyed', or draw from all tokens{cure}"
        )
    if rollout.workers > load.samples:
        yield f"rollout.workers = {rollout.workers}, but a step has {load.samples} samples: some have no work"
    if eval.every > load.steps:
        run = counted(load.steps, "step")
        yield f"eval.every = {eval.every} is more than the {run} of the run: only its end is evaluated"
