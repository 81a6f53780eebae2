"""The arithmetic of a run: prompts, samples, steps, optimizer steps, passes. Pure: settings and counts in, words out.

Mirrors `rhymed_broker.plan` (steps) and `rhymed_workers.trainer.packing` (packing); a test holds it against both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhymed.check.report import Section
from rhymed.config import Config
from rhymed.text import counted

PACK_TOKENS = 1024
"""Rows of a micro-batch are filled up to this (rhymed_workers.trainer.packing)."""


@dataclass(frozen=True)
class Workload:
    prompts: int  # in the dataset
    samples: int  # a step
    steps: int
    passes: int  # forward and backward passes a step, when all responses are as long as allowed
    rows: int  # in the largest pass
    width: int  # tokens of its longest row
    responses: int  # in a row
    prompt_length: int  # tokens of the longest prompt

    @property
    def pass_tokens(self) -> int:
        """Padded tokens of the largest pass."""
        return self.rows * self.width


def workload(config: Config, prompts: int, prompt_length: int) -> Workload:
    rollout, trainer = config.rollout, config.trainer
    steps = trainer.epochs * prompts // rollout.prompts_per_step
    passes = packed(config, prompt_length)
    largest = max(passes, key=lambda rows: len(rows) * max(rows))
    return Workload(
        prompts=prompts,
        samples=rollout.prompts_per_step * rollout.group_size,
        steps=min(steps, trainer.steps) if trainer.steps else steps,
        passes=len(passes),
        rows=len(largest),
        width=max(largest),
        responses=max(1, (max(largest) - prompt_length) // rollout.max_response_length),
        prompt_length=prompt_length,
    )


def packed(config: Config, prompt_length: int) -> list[list[int]]:
    """Row lengths of every pass of a step, when all prompts and responses are as long as they can be."""
    samples = config.rollout.prompts_per_step * config.rollout.group_size
    updates, group = min(config.trainer.minibatches, samples), config.rollout.group_size
    ends = [samples * number // updates for number in range(updates + 1)]
    passes: list[list[int]] = []
    for first, last in itertools.pairwise(ends):
        parts = [min(last, start + group) - max(first, start) for start in range(0, samples, group)]
        rows = itertools.chain(*(_rows(config, part, prompt_length) for part in parts if part > 0))
        fresh: list[list[int]] = []
        for row in sorted(rows, reverse=True):
            if fresh and (len(fresh[-1]) + 1) * fresh[-1][0] <= config.trainer.micro_tokens:
                fresh[-1].append(row)
            else:
                fresh.append([row])
        passes += fresh
    return passes


def _rows(config: Config, responses: int, prompt_length: int) -> Iterator[int]:
    length = config.rollout.max_response_length
    fit = max(1, (min(config.trainer.micro_tokens, PACK_TOKENS) - prompt_length) // length)
    for first in range(0, responses, fit):
        yield prompt_length + min(fit, responses - first) * length


def describe(config: Config, load: Workload, held_out: Sequence[int]) -> tuple[Section, list[str]]:
    """The section and what is worth a warning. `held_out`: prompts of each evaluation dataset."""
    rollout, trainer = config.rollout, config.trainer
    section = Section("batch")
    prompts, epoch = rollout.prompts_per_step, load.prompts / rollout.prompts_per_step
    over = "" if epoch == int(epoch) else "; what an epoch leaves over opens the next one"
    section.add("prompts", f"{load.prompts:,}, {prompts} a step: {counted(epoch, 'step')} an epoch{over}")
    section.add("samples", f"{prompts} prompts x {rollout.group_size} (group_size) = {load.samples} a step")
    cut = f", cut at trainer.steps = {trainer.steps}" if trainer.steps == load.steps else ""
    section.add("steps", f"{counted(trainer.epochs, 'epoch')} = {counted(load.steps, 'step')}{cut}")
    tokens = load.steps * load.samples * rollout.max_response_length
    section.add("in all", f"{load.steps * load.samples:,} samples, at most {tokens:,} response tokens")
    section.add("rollout", _rounds(config, load))
    updates, each = counted(trainer.minibatches, "optimizer step"), load.samples // trainer.minibatches
    section.add("updates", f"{updates} a step (trainer.minibatches), on {each} samples each")
    section.add("passes", _passes(config, load))
    section.add("staleness", _staleness(config, load))
    saved = math.ceil(load.steps / trainer.checkpoint_every)
    section.add("saved", f"{counted(saved, 'checkpoint')}, every {trainer.checkpoint_every} steps and at the end")
    if config.eval.every:
        section.add("evaluation", _evaluation(config, load, held_out))
    return section, list(_warnings(config, load))


def _rounds(config: Config, load: Workload) -> str:
    rollout = config.rollout
    if not rollout.workers:
        return "no worker is started here (rollout.workers = 0): start some with `rhymed worker --role rollout`"
    slots = rollout.workers * rollout.max_concurrency
    return (
        f"{counted(rollout.workers, 'worker')} x {rollout.max_concurrency} at once (max_concurrency) = {slots} slots:"
        f" {counted(math.ceil(load.samples / slots), 'round')} a step"
    )


def _passes(config: Config, load: Workload) -> str:
    return (
        f"at most {load.passes} forward and backward a step; the largest has {counted(load.rows, 'row')} of"
        f" {load.width} tokens (a prompt of {load.prompt_length} and {counted(load.responses, 'response')} at full"
        f" length), {load.pass_tokens:,} of trainer.micro_tokens = {config.trainer.micro_tokens:,}"
    )


def _staleness(config: Config, load: Workload) -> str:
    lag = config.schedule.max_staleness
    if lag == 0:
        return (
            f"0: all {load.samples} samples of a step are sampled with the newest weights; engines wait while the"
            " trainer trains"
        )
    return (
        f"{lag}: while a step trains, the {load.samples * lag} samples of the next {counted(lag, 'step')} are sampled"
        f" with weights up to {counted(lag, 'update step')} old; engines do not wait"
    )


def _evaluation(config: Config, load: Workload, held_out: Sequence[int]) -> str:
    each = sum(held_out) * config.eval.samples
    times = math.ceil(load.steps / config.eval.every) + config.eval.at_start
    share = times * each / max(1, load.steps * load.samples)
    return (
        f"{sum(held_out):,} prompts x {config.eval.samples} = {each:,} responses, {times} times: {times * each:,},"
        f" {share:.0%} of what the training samples"
    )


def _warnings(config: Config, load: Workload) -> Iterator[str]:
    rollout, trainer = config.rollout, config.trainer
    longest = rollout.max_prompt_length + rollout.max_response_length
    if longest > trainer.micro_tokens:
        yield (
            f"trainer.micro_tokens = {trainer.micro_tokens} is less than one sample at full length"
            f" (max_prompt_length + max_response_length = {longest}): such a sample is a pass of its own and takes"
            " more memory than micro_tokens says"
        )
    if trainer.warmup_steps > load.steps:
        yield (
            f"trainer.warmup_steps = {trainer.warmup_steps}, but the run has {counted(load.steps, 'step')}:"
            " trainer.lr is never reached"
        )
    if rollout.workers > load.samples:
        yield f"rollout.workers = {rollout.workers}, but a step has {load.samples} samples: some have nothing to do"
    if config.eval.every > load.steps:
        run = counted(load.steps, "step")
        yield f"eval.every = {config.eval.every} is more than the {run} of the run: only its end is evaluated"
