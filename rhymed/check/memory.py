"""Memory and disk that a run needs, from the model's size, compared with this machine. Pure.

An upper estimate, within some tens of per cent of what trainer and engines really use.

`needs` is the whole run's; `pass_parts` divides the largest pass of a trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rhymed.check import lora
from rhymed.check.arithmetic import Workload
from rhymed.check.lora import Adapters
from rhymed.check.report import GIB, Section
from rhymed.check.size import FP32, ITEM_BYTES, Size
from rhymed.core.config import Config, Model, Rollout, Store, Trainer
from rhymed.core.text import counted, size_of
from rhymed.inputs.quantised import BITS_BYTES

SUM_BYTES = 8  # of a weight's gradient, added up over groups (trainer.overlap)
MOMENT_BYTES = {"adamw": 8.0, "paged_adamw": 8.0, "adamw_8bit": 2 + 8 / 256, "paged_adamw_8bit": 2 + 8 / 256}
"""Of both moments of a parameter; 8-bit ones have a scale for every 256 (rhymed_workers.trainer.optim.optimizer)."""
MUON_BYTES = 4.0  # of the momentum of a layer's matrix; the ends have AdamW

VERSIONS = 3  # published: two are kept, one is being written (rhymed_workers.trainer.publish)
TRAINER_BYTES = 0.4 * GIB  # of libraries: torch, transformers; of each rank
ENGINE_BYTES = 1.0 * GIB  # of libraries and buffers, per engine
STORED_BYTES = 3  # per token
LOGPROB_BYTES = 4  # per token, until its step is in every kept checkpoint
TOKEN_STATS_BYTES = 6  # per token, compressed, see rhymed_store.codec.tokenstats


@dataclass(frozen=True)
class Machine:
    """Bytes."""

    memory: int
    memory_free: int
    shared_free: int  # 0: no shared memory
    disk_free: int


@dataclass(frozen=True)
class Needs:
    """Bytes."""

    weights: float
    gradients: float
    moments: float
    reference: float
    critic: float  # its weights, gradients and moments
    teacher: float
    passing: dict[str, float]  # the largest pass of one rank, by part
    copied: float  # host memory of a checkpoint: its copy, or the weights that one of several ranks gathers
    engine: float  # each
    sequence: float  # keys and values of one sample at full length
    published: float
    checkpoint: float  # each
    store: float  # upper bound, whole run
    ranks: int = 1  # that share the models
    here: int = 1  # of them on this machine

    @property
    def working(self) -> float:
        """Of the largest pass of one rank."""
        return sum(self.passing.values())

    @property
    def models(self) -> dict[str, float]:
        """What the trainer keeps between steps, by name; without what there is not."""
        parts = {"weights": self.weights, "gradients": self.gradients, "optimizer": self.moments}
        parts |= {"reference model": self.reference, "critic": self.critic, "teacher": self.teacher}
        return {name: size for name, size in parts.items() if size}

    @property
    def trainer(self) -> float:
        """On this machine."""
        return self.here * self.rank + self.copied

    @property
    def rank(self) -> float:
        """Of one rank, on its device."""
        return sum(self.models.values()) / self.ranks + self.working + TRAINER_BYTES


def needs(
    model: Model,
    rollout: Rollout,
    trainer: Trainer,
    size: Size,
    load: Workload,
    adapters: Adapters | None = None,
    critic: Size | None = None,
    teacher: Size | None = None,
    *,
    gpus: bool = False,
) -> Needs:
    """`critic`: size of the critic's model, if there is one. Its passes alternate with the policy's.
    `teacher`: weights of the teacher that the trainer loads. `gpus`: the trainer computes on GPUs.
    """
    parameters, tokens = size.parameters, load.pass_tokens
    trained = adapters.parameters if adapters else parameters
    values = critic.parameters if critic else 0
    steps_with_logprobs = min(load.steps, trainer.checkpoint_every * trainer.keep_checkpoints)
    per_token = LOGPROB_BYTES * (2 if rollout.cuts and not rollout.untold_cuts else 1)  # with floors
    stored = STORED_BYTES * load.generated * load.steps + per_token * load.samples * steps_with_logprobs
    moment = moment_bytes(trainer, None if adapters else size)
    vllm, item = rollout.engine == "vllm", ITEM_BYTES[model.dtype]
    return Needs(
        weights=FP32 * parameters if adapters is None else lora_weights(model, size, adapters),
        gradients=(FP32 + (SUM_BYTES if trainer.overlap else 0)) * trained,
        moments=moment * trained,
        reference=FP32 * parameters if trainer.recipe.kl_coef and not adapters else 0,
        critic=(2 * FP32 + moment_bytes(trainer, critic)) * values,
        teacher=FP32 * teacher.parameters if teacher else 0,
        passing=max(
            (pass_parts(model, trainer, one, tokens, load.width, gpu=gpus) for one in (size, critic) if one),
            key=lambda found: sum(found.values()),
        ),
        copied=_copied(trainer, trained + values, moment),
        engine=item * parameters + rollout.kv_cache_gib * GIB + ENGINE_BYTES if vllm else 0,
        sequence=2 * size.layers * size.key_value * item * full_length(rollout) if vllm else 0,
        published=VERSIONS * (FP32 if adapters else item) * trained,
        checkpoint=(FP32 + moment) * (trained + values),
        store=rollout.max_response_length * stored,
        ranks=trainer.world,
        here=trainer.ranks_per_node,
    )


def moment_bytes(trainer: Trainer, size: Size | None) -> float:
    """Of the optimizer's state of a parameter, on average. `size`: of the model; None: adapters are trained."""
    if trainer.optimizer != "muon":
        return MOMENT_BYTES[trainer.optimizer]
    ends = size.ends / size.parameters if size and size.parameters else 0.0
    return MUON_BYTES + (MOMENT_BYTES["adamw"] - MUON_BYTES) * min(1.0, ends)


def _copied(trainer: Trainer, trained: int, moment: float) -> float:
    if trainer.async_checkpoints:
        return (FP32 + moment) * trained
    return FP32 * trained if trainer.world > 1 else 0


def on_host(need: Needs, rollout: Rollout) -> Needs:
    """What is left for the host's memory where trainer and engines compute on GPUs."""
    return replace(
        need,
        weights=0.0,
        gradients=0.0,
        moments=0.0,
        reference=0.0,
        critic=0.0,
        teacher=0.0,
        passing={},
        engine=ENGINE_BYTES if rollout.engine == "vllm" else 0,
        sequence=0,
    )


def lora_weights(model: Model, size: Size, adapters: Adapters) -> float:
    """The model and its adapters; frozen linear layers have the type in which the trainer computes, or 4 bits."""
    others = size.parameters - adapters.frozen
    frozen = BITS_BYTES if model.quantization else ITEM_BYTES[model.train_dtype]
    return FP32 * (others + adapters.parameters) + frozen * adapters.frozen


def full_length(rollout: Rollout) -> int:
    """Tokens of the longest sample."""
    return rollout.max_prompt_length + rollout.max_response_length


def describe(
    config: Config,
    size: Size,
    load: Workload,
    machine: Machine,
    adapters: Adapters | None = None,
    critic: Size | None = None,
    teacher: Size | None = None,
    *,
    gpus: bool = False,
) -> Section:
    """`gpus`: trainer and engines compute on GPUs, see `check.devices`."""
    rollout, trainer, store = config.rollout, config.trainer, config.store
    need = needs(config.model, rollout, trainer, size, load, adapters, critic, teacher, gpus=gpus)
    statistics = token_statistics(store, rollout, load)
    need = replace(need, store=need.store + statistics)
    section = Section("memory and disk (estimates)")
    section.add("model", f"{size.architecture}, {size.parameters / 1e6:,.1f} M parameters")
    if trainer.lora and adapters:
        section.add("LoRA", lora.describe(trainer.lora, adapters))
    section.add("trainer", _trainer(need))
    if need.ranks > 1:
        section.add("each rank", f"{size_of(need.rank)}: {listed(need)}")
    if gpus:
        need = on_host(need, rollout)
    elif need.engine:
        section.add("engines", _engines(config, need))
    section.add("published", f"{size_of(need.published)} in /dev/shm ({size_of(machine.shared_free)} free)")
    total = in_memory(rollout, need, machine)
    section.add(
        "total", f"{size_of(total)} of {size_of(machine.memory_free)} available ({size_of(machine.memory)} in total)"
    )
    section.add("checkpoints", f"{_checkpoints(trainer)}, {size_of(need.checkpoint)} each")
    section.add("store", f"at most {size_of(need.store)} (store.map_gib = {store.map_gib:g})")
    section.add(
        "token statistics", f"at most {size_of(statistics)} of it (store.token_stats_gib = {store.token_stats_gib:g})"
    )
    section.add("disk", f"{size_of(on_disk(trainer, store, need))} at most, {size_of(machine.disk_free)} free")
    section.errors += errors(rollout, trainer, need, machine)
    section.warnings += _warnings(rollout, trainer, store, need, machine)
    return section


def _engines(config: Config, need: Needs) -> str:
    rollout = config.rollout
    fit = int(rollout.kv_cache_gib * GIB // max(1, need.sequence))
    parts = f"weights ({config.model.dtype}), kv_cache_gib = {rollout.kv_cache_gib:g}, libraries"
    return f"{rollout.workers} x {size_of(need.engine)}: {parts}; {fit} samples fit at full length"


def _trainer(need: Needs) -> str:
    kept = ", ".join(f"{name} {size_of(value)}" for name, value in need.models.items())
    kept += f", copy for checkpoints {size_of(need.copied)}" if need.copied else ""
    if need.ranks > 1:
        return f"{size_of(need.trainer)} for {counted(need.here, 'rank')}; of all ranks: {kept}"
    return f"{size_of(need.trainer)}: {kept}, {_largest(need)}"


def listed(need: Needs) -> str:
    """What one rank has, by part."""
    each = ", ".join(f"{name} {size_of(value / need.ranks)}" for name, value in need.models.items())
    return f"{each}, {_largest(need)}"


def _largest(need: Needs) -> str:
    """The pass that takes most, by part."""
    within = ", ".join(f"{name} {size_of(value)}" for name, value in need.passing.items())
    return f"the largest pass {size_of(need.working)} ({within})"


def in_memory(rollout: Rollout, need: Needs, machine: Machine) -> float:
    shared = need.published if machine.shared_free >= need.published else 0
    return need.trainer + rollout.workers * need.engine + shared


def _checkpoints(trainer: Trainer) -> str:
    """The parts of `Trainer.stored_checkpoints`."""
    best = " + the best one and one that is evaluated (trainer.keep_best)" if trainer.keep_best else ""
    return f"{trainer.keep_checkpoints} kept + 1 being written{best}"


def on_disk(trainer: Trainer, store: Store, need: Needs) -> float:
    return trainer.stored_checkpoints * need.checkpoint + min(need.store, store.map_gib * GIB)


def token_statistics(store: Store, rollout: Rollout, load: Workload) -> float:
    """At most: bytes of what training computed of each token."""
    tokens = load.samples * load.steps * rollout.max_response_length
    return min(float(store.token_stats_bytes), TOKEN_STATS_BYTES * tokens)


def errors(rollout: Rollout, trainer: Trainer, need: Needs, machine: Machine) -> Iterator[str]:
    least = in_memory(rollout, need, machine) - need.here * need.working
    if least > machine.memory:
        yield (
            f"memory: {size_of(least)} are needed even for the shortest responses, this machine has"
            f" {size_of(machine.memory)}: use a smaller model, fewer rollout.workers or a smaller"
            " rollout.kv_cache_gib"
        )
    if need.sequence > rollout.kv_cache_gib * GIB:
        yield (
            f"rollout.kv_cache_gib = {rollout.kv_cache_gib:g}: one sample of"
            f" max_prompt_length + max_response_length = {full_length(rollout)} tokens needs"
            f" {size_of(need.sequence)}: raise it, or lower them"
        )
    checkpoints = trainer.stored_checkpoints * need.checkpoint
    if checkpoints > machine.disk_free:
        yield (
            f"disk: checkpoints ({_checkpoints(trainer)}) take {size_of(checkpoints)},"
            f" {size_of(machine.disk_free)} are free: lower trainer.keep_checkpoints,"
            f"{' set trainer.keep_best = false,' if trainer.keep_best else ''} or set run.folder to another disk"
        )


def _warnings(rollout: Rollout, trainer: Trainer, store: Store, need: Needs, machine: Machine) -> Iterator[str]:
    total = in_memory(rollout, need, machine)
    if total > machine.memory_free and total - need.here * need.working <= machine.memory:
        yield (
            f"memory: about {size_of(total)} are needed, {size_of(machine.memory_free)} are available: lower"
            " trainer.micro_tokens, rollout.workers or rollout.kv_cache_gib,"
            f"{' set trainer.async_checkpoints = false,' if need.copied else ''} or end other programs"
        )
    if need.published > machine.shared_free:
        yield (
            f"/dev/shm has {size_of(machine.shared_free)} free, published weights need {size_of(need.published)}:"
            " they will go through the run's folder, which is slower"
        )
    if need.store > store.map_gib * GIB:
        yield (
            f"store.map_gib = {store.map_gib:g}, but if all responses are long the store takes"
            f" {size_of(need.store)}: raise it; it takes disk only as needed"
        )
    disk = on_disk(trainer, store, need)
    if disk > machine.disk_free >= trainer.stored_checkpoints * need.checkpoint:
        yield (
            f"disk: checkpoints and store may take {size_of(disk)}, {size_of(machine.disk_free)} are free"
            f" (trainer.keep_checkpoints,{' trainer.keep_best,' if trainer.keep_best else ''} run.folder)"
        )


# Memory of a trainer's largest pass on one rank, by part. Pure.
#
# What autograd keeps was counted on Llama and Qwen in transformers: per token and layer six numbers of the hidden
# size in float32, and in the type of the computation four of the queries' width (queries, expanded keys and values,
# output) and four of the intermediate size. Measured peaks of one and two ranks agree (`tests/check/devices`).

LOGITS_BYTES, GPU_LOGITS_BYTES, GPU_ROWS_BYTES = 1 << 28, 1 << 30, 1 << 27
"""Sizes of the buffer in which logits are made, and on a GPU of the rows that are worked on, of which there are four
copies (rhymed_workers.trainer.policy.head)."""


KEPT_SCORES, MADE_SCORES = 3, 2
"""Copies of a layer's scores in transformers' own attention: at most those of Gemma 2 and gpt-oss."""


def pass_parts(
    model: Model, trainer: Trainer, size: Size, tokens: int, width: int = 0, *, gpu: bool = False
) -> dict[str, float]:
    """Bytes by name. `tokens`: in the pass; `width`: of them in a row. `gpu`: whether a GPU computes it."""
    item, ends = ITEM_BYTES[model.train_dtype], size.vocabulary * size.hidden
    logits = tokens * size.vocabulary * FP32
    rows = 4 * min(GPU_ROWS_BYTES, logits)
    found = {
        "activations": tokens * _kept(model, trainer, size),
        "attention's scores": float(tokens * width * size.scored * FP32 * _scores(trainer, size)),
        "a slice of logits": min(GPU_LOGITS_BYTES, logits) + rows if gpu else min(LOGITS_BYTES, logits),
        "the head's gradient": 0 if trainer.lora else FP32 * ends,
        "copies in bfloat16": 0.0,
        "an unpacked layer": float(size.hidden * size.intermediate * (item + ITEM_BYTES[model.dtype]))
        if model.quantization and trainer.lora
        else 0.0,
        "gathered layers": 0.0,
        "gradients before they are summed": 0.0,
    }
    layers = 1 if trainer.gradient_checkpointing else size.layers
    if item < FP32:  # made for each pass, where weights are neither sharded nor frozen
        found["copies in bfloat16"] = item * (
            ends + (0 if trainer.lora or trainer.world > 1 else layers * size.layer)
        )
    if trainer.world > 1:
        found["gathered layers"] = FP32 * size.ends + 2 * item * size.layer
        found["gradients before they are summed"] = 0 if trainer.lora else FP32 * (ends + 2 * size.layer)
    return {name: value for name, value in found.items() if value}


def _scores(trainer: Trainer, size: Size) -> int:
    """How often the scores of a layer are there: kept for the gradient, and while they are made."""
    return KEPT_SCORES * (1 if trainer.gradient_checkpointing else size.layers) + MADE_SCORES


def _kept(model: Model, trainer: Trainer, size: Size) -> float:
    """Of one token, for the gradient."""
    layer = activation_bytes(size, ITEM_BYTES[model.train_dtype])
    if trainer.gradient_checkpointing:
        return size.hidden * FP32 * size.layers + layer
    return layer * size.layers


def activation_bytes(size: Size, item: int) -> float:
    """Per token and layer. `item`: bytes of a number in the computation."""
    cast = size.hidden if item < FP32 else 0
    wide = size.query or size.hidden
    return FP32 * 6 * size.hidden + item * (cast + 4 * wide + 4 * size.intermediate + 2 * size.key_value)
