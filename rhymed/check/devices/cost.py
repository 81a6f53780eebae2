"""What a step costs at most: floating-point operations of training and generation, and seconds on known GPUs. Pure.

An estimate. Operations are those of matrix products and attention, with all responses at full length; seconds divide
them by published peaks times an assumed share that real programs reach. Waiting, transfers and scoring are not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rhymed.check.arithmetic import Workload
from rhymed.check.devices.shape import Shape
from rhymed.check.report import Section
from rhymed.check.reward import Speed
from rhymed.check.sizes.size import ITEM_BYTES
from rhymed.config import Config, Rollout, Trainer
from rhymed.gpus.inventory import Gpu
from rhymed.gpus.peaks import Peak, peak_of
from rhymed.gpus.placement import generates_on_gpus, trains_on_gpus
from rhymed.text import duration

TRAINING = (0.2, 0.5)
"""Shares of a GPU's peak that training reaches, least and most. Assumed."""

GENERATION = (0.3, 0.7)
"""As `TRAINING`, of the peak or of the memory bandwidth, whichever takes longer."""

Span = tuple[float, float]
"""Seconds, least and most."""


@dataclass(frozen=True)
class Cost:
    """Of one step. `training`, `generation`: operations; `read`: bytes that each engine's GPUs read to generate."""

    training: float
    generation: float
    read: float
    passes: str  # what training computes


def cost(config: Config, shape: Shape, load: Workload) -> Cost:
    rollout = config.rollout
    names, factor = _passes(config.trainer)
    forward = load.tokens * shape.token_flops + shape.attention_flops(load.seen)
    forward += load.samples * rollout.max_response_length * shape.head_flops
    written = load.generated * rollout.max_response_length
    middle = load.prompt_length + rollout.max_response_length / 2
    generation = written * (shape.token_flops + shape.head_flops + shape.attention_flops(middle))
    prompts = load.generated / rollout.group_size * load.prompt_length  # a group's is computed once
    generation += prompts * (shape.token_flops + shape.attention_flops(load.prompt_length / 2))
    passes = f"{load.tokens:,} tokens through {names}"
    return Cost(factor * forward, generation, _read(config, shape, load, middle), passes)


def _passes(trainer: Trainer) -> tuple[str, float]:
    """What is computed with every token, and how many forward passes it is worth."""
    recipe, again = trainer.recipe, 1 if trainer.gradient_checkpointing else 0
    backward = 1 if trainer.lora else 2  # frozen weights get no gradient
    parts = {"policy": 1 + backward + again}
    if trainer.minibatches > 1 or recipe.old_first:
        parts["log-probs before the updates"] = 1
    if recipe.kl_coef:
        parts["reference"] = 1
    if recipe.critic:
        parts["critic"] = 1 + 3 + again
    if trainer.teacher.used and not trainer.teacher.url:
        parts["teacher"] = 1
    return ", ".join(parts), float(sum(parts.values()))


def _read(config: Config, shape: Shape, load: Workload, middle: float) -> float:
    """Weights once for each token that all running samples write together, and their keys and values."""
    rollout, item = config.rollout, ITEM_BYTES[config.model.dtype]
    engines = max(1, rollout.workers)
    running = min(rollout.max_concurrency, math.ceil(load.generated / engines))
    rounds = math.ceil(load.generated / engines / running)
    cached = 2 * shape.layers * shape.key_value_heads * shape.head * item * middle
    return rounds * rollout.max_response_length * (item * shape.parameters + running * cached)


def training_s(config: Config, found: Cost, peak: Peak) -> Span:
    most = peak.flops(config.model.train_dtype) * config.trainer.world
    return found.training / most / TRAINING[1], found.training / most / TRAINING[0]


def generation_s(config: Config, found: Cost, peak: Peak) -> Span:
    rollout, gpus = config.rollout, config.rollout.engine_gpus
    computed = found.generation / max(1, rollout.workers) / gpus / peak.flops(config.model.dtype)
    least = max(computed, found.read / gpus / peak.memory)
    return least / GENERATION[1], least / GENERATION[0]


def describe(config: Config, gpu: Gpu, shape: Shape, load: Workload) -> Section:
    """On GPUs like `gpu`. `load.steps`: 0 if they are not known."""
    found, peak = cost(config, shape, load), peak_of(gpu.kind, gpu.bytes)
    section = Section("cost of a step (an estimate: all responses at full length)")
    spans: list[Span] = []
    for label, count, what, here, span in (
        ("training", found.training, found.passes, trains_on_gpus(config), training_s),
        ("generation", found.generation, _written(config.rollout, load), generates_on_gpus(config), generation_s),
    ):
        if peak and here:
            spans.append(span(config, found, peak))
            section.add(label, f"{_span(spans[-1])}: {operations(count)}, {what}")
        elif here:
            section.add(label, f"{operations(count)}, {what}")
    if not peak:
        section.add("seconds", f"unknown: no published peak of {gpu.kind} is in the table (rhymed/gpus/peaks.py)")
    elif spans:
        section.add("a step", _step(config, spans, load))
        section.add("assumed", _assumed(gpu, peak))
    return section


def on_processors(config: Config, shape: Shape, load: Workload, speed: Speed | None) -> Section:
    """`speed`: of the model, as it was measured here; None: it was not."""
    found = cost(config, shape, load)
    section = Section("cost of a step (an estimate: all responses at full length)")
    training, generation = operations(found.training), operations(found.generation)
    if speed:
        each = shape.token_flops + shape.head_flops
        training = f"about {duration(found.training / each / speed.read)}: {training}"
        seconds = load.generated * config.rollout.max_response_length / speed.written
        generation = f"at most about {duration(seconds)}: {generation}"
    section.add("training", f"{training}, {found.passes}")
    if generates_on_gpus(config):
        section.add("generation", f"{generation}, {_written(config.rollout, load)}")
    if speed:
        section.add(
            "measured",
            f"the model read {speed.read:,.0f} tokens of the first prompt per second, all at once, and wrote"
            f" {speed.written:,.1f} per second, one sequence alone: engines write many at once, which takes less time"
            " for each; without the ranks, threads and engines of a run",
        )
    return section


def _written(rollout: Rollout, load: Workload) -> str:
    return f"{load.generated:,} responses of {rollout.max_response_length:,} tokens, without drafts"


def _step(config: Config, spans: list[Span], load: Workload) -> str:
    together = len(spans) > 1 and config.schedule.max_staleness > 0 and not config.schedule.colocate
    step = tuple((max if together else sum)(ends) for ends in zip(*spans, strict=True))
    how = "generation and training at the same time" if together else "one after the other"
    whole = _span((step[0] * load.steps, step[1] * load.steps))
    run = f"; the run's {load.steps:,} steps {whole}" if load.steps else ""
    return _span((step[0], step[1])) + (f", {how}" if len(spans) > 1 else "") + run


def _assumed(gpu: Gpu, peak: Peak) -> str:
    return (
        f"{TRAINING[0]:.0%} to {TRAINING[1]:.0%} of the peak in training, {GENERATION[0]:.0%} to {GENERATION[1]:.0%}"
        f" of peak or bandwidth in generation; {gpu.kind}: {peak.bfloat16 / 1e12:g} TFLOP/s in bfloat16,"
        f" {peak.float32 / 1e12:g} in float32, {peak.memory / 1e12:g} TB/s. Not compared with a GPU"
    )


def _span(span: Span) -> str:
    least, most = map(duration, span)
    if span[0] < 1:
        return "less than 1 s" if span[1] < 1 else f"up to {most}"
    return least if least == most else f"{least} to {most}"


def operations(count: float) -> str:
    """`1.2 PFLOP`."""
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e9:,.1f} GFLOP"
