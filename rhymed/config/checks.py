"""Settings that cannot be together, each with both keys named. What a file would have to be read for is not here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhymed.config.config import Config
    from rhymed.config.sections import Eval


QUEUED = 8  # samples in hand for each scoring process, see rhymed_workers.reward.worker


def contradictions(config: Config) -> Iterator[str]:
    """What settings say against each other, a line each, as far as no file has to be read for it."""
    rollout, trainer, data = config.rollout, config.trainer, config.data
    samples = rollout.prompts_per_step * rollout.group_size
    if samples % trainer.minibatches:
        yield (
            f"trainer.minibatches = {trainer.minibatches} does not divide the {samples} samples of a step"
            " (rollout.prompts_per_step x rollout.group_size)"
        )
    if data.source == "reasoning_gym" and data.size < rollout.prompts_per_step:
        yield f"data.size = {data.size} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    if 0 < data.limit < rollout.prompts_per_step:
        yield f"data.limit = {data.limit} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    if trainer.steps is not None and trainer.warmup_steps > trainer.steps:
        yield (
            f"trainer.warmup_steps = {trainer.warmup_steps} is more than trainer.steps = {trainer.steps}:"
            " the learning rate would never be reached"
        )
    if trainer.engine == "trace" and rollout.engine != "trace":
        yield (
            "trainer.engine = 'trace' publishes no model, so rollout.engine must be 'trace' as well:"
            f" {rollout.engine} would have nothing to load"
        )
    if config.drafts.method != "none" and rollout.sampler == "vllm" and rollout.min_p:
        yield (
            f"rollout.min_p = {rollout.min_p} with drafts needs rollout.sampler = 'keyed':"
            " vLLM's own sampler refuses it beside drafts"
        )
    if config.schedule.run_ahead and (rollout.sampler == "vllm" or config.drafts.method == "none"):
        yield (
            "schedule.run_ahead needs rollout.sampler = 'keyed' and drafts.method = 'history':"
            " what is written ahead is verified as a draft under the same noise"
        )
    yield from _evaluation(config.eval)
    if config.schedule.lost_after_s <= 2 * config.schedule.heartbeat_s:
        yield "schedule.lost_after_s must be more than twice schedule.heartbeat_s"
    scoring_s = QUEUED * len(config.reward.all) * config.reward.timeout_s
    if scoring_s >= config.schedule.stuck_after_s:
        yield (
            f"schedule.stuck_after_s = {config.schedule.stuck_after_s:g} must be more than {scoring_s:g}: {QUEUED}"
            f" samples wait for a scoring process, and each may take reward.timeout_s = {config.reward.timeout_s:g}"
        )
    given = [address for address in (config.net.broker, config.net.store, config.net.weights) if address]
    if len(set(given)) < len(given):
        yield "net.broker, net.store and net.weights must be three different addresses"


def _evaluation(held_out: Eval) -> Iterator[str]:
    if held_out.every and not held_out.datasets:
        yield f"eval.every = {held_out.every} needs at least one of [[eval.datasets]]"
    names = [one.name for one in held_out.datasets]
    if len(set(names)) < len(names):
        yield f"eval.datasets: two have the same name ({', '.join(names)})"
    if held_out.samples > 1 and held_out.temperature == 0:
        yield (
            f"eval.samples = {held_out.samples} with eval.temperature = 0: greedy responses are all the same;"
            " set samples = 1 or a temperature"
        )
