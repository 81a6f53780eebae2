"""Memory and disk that a run needs, from its models' sizes, and whether this machine has it. Pure.

An upper estimate, within some tens of per cent of what trainer and engines really use. `needs` is the whole run's;
`check.devices` compares it with GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rhymed.check import lora
from rhymed.check.arithmetic import Workload
from rhymed.check.lora import Adapters
from rhymed.check.report import GIB, Section
from rhymed.check.size import FP32, ITEM_BYTES, Size
from rhymed.core.config import Config, Model, Rollout, Trainer
from rhymed.core.text import counted, size_of
from rhymed.histospec.graphs import verifying_tokens
from rhymed.inputs.quantised import BITS_BYTES

SUM_BYTES = 8  # of a weight's gradient, added up over groups (trainer.overlap)
MOMENT_BYTES = {"adamw": 8.0, "paged_adamw": 8.0, "adamw_8bit": 2 + 8 / 256, "paged_adamw_8bit": 2 + 8 / 256}
"""Of both moments of a parameter; 8-bit ones have a scale for every 256 (rhymed_workers.trainer.optim.optimizer)."""

VERSIONS = 3  # published: two are kept, one is being written (rhymed_workers.trainer.publish)
TRAINER_BYTES = 0.4 * GIB  # of libraries: torch, transformers; of each rank
ENGINE_BYTES = 1.0 * GIB  # of libraries and buffers, per engine
CONTEXT_BYTES = 1.0 * GIB  # of a process on a GPU: CUDA's context, libraries, NCCL's buffers
GRAPH_BYTES = 1.0 * GIB  # of an engine's captured CUDA graphs
BATCH_TOKENS = 8192  # of a forward pass on a GPU, where rollout.batch_tokens leaves it to vLLM
QUANTIZED_BYTES = {"fp8": 1.0, "int8": 1.0, "awq": 0.5, "gptq": 0.5, "mxfp4": 0.5}
"""Of a weight, by the beginning of `rollout.quantization`; other kinds count as if there were none."""
STORED_BYTES = 3  # per token
LOGPROB_BYTES = 4  # per token, until its step is in every kept checkpoint


@dataclass(frozen=True)
class Machine:
    """Bytes."""

    memory: int
    memory_free: int
    shared_free: int  # 0: no shared memory
    disk_free: int


@dataclass(frozen=True)
class Models:
    """What a trainer loads. `teacher`: only one that it loads itself."""

    policy: Size
    adapters: Adapters | None = None
    critic: Size | None = None
    teacher: Size | None = None


@dataclass(frozen=True)
class Needs:
    """Bytes."""

    models: dict[str, float]  # what the ranks together keep between steps, by name
    working: float  # the largest pass of one rank; those of policy and critic alternate
    copied: float  # host memory of a checkpoint: its copy, or the weights that one of several ranks gathers
    published: float
    checkpoint: float  # each
    store: float  # upper bound, whole run
    ranks: int  # that share the models
    here: int  # of them on this machine

    @property
    def kept(self) -> float:
        """By one rank, between steps."""
        return sum(self.models.values()) / self.ranks

    def __str__(self) -> str:
        """Of one rank, by part."""
        each = ", ".join(f"{name} {size_of(value / self.ranks)}" for name, value in self.models.items() if value)
        return f"{each}, the largest pass {size_of(self.working)}"


def needs(config: Config, models: Models, load: Workload, *, gpus: bool = False) -> Needs:
    """`gpus`: the trainer computes on GPUs."""
    model, rollout, trainer = config.model, config.rollout, config.trainer
    policy, adapters, critic, teacher = models.policy, models.adapters, models.critic, models.teacher
    trained = adapters.parameters if adapters else policy.parameters
    values = critic.parameters if critic else 0
    moment = MOMENT_BYTES[trainer.optimizer]
    steps_with_logprobs = min(load.steps, trainer.checkpoint_every * trainer.keep_checkpoints)
    per_token = LOGPROB_BYTES * (2 if rollout.cuts and not rollout.untold_cuts else 1)  # with floors
    stored = STORED_BYTES * load.generated * load.steps + per_token * load.samples * steps_with_logprobs
    if trainer.async_checkpoints:
        copied = (FP32 + moment) * (trained + values)
    else:
        copied = FP32 * (trained + values) if trainer.world > 1 else 0
    return Needs(
        models={
            "weights": lora_weights(model, policy, adapters) if adapters else FP32 * policy.parameters,
            "gradients": (FP32 + (SUM_BYTES if trainer.overlap else 0)) * trained,
            "optimizer": moment * trained,
            "reference model": FP32 * policy.parameters if trainer.recipe.kl_coef and not adapters else 0,
            "critic": (2 * FP32 + moment) * values,
            "teacher": FP32 * teacher.parameters if teacher else 0,
        },
        working=max(pass_bytes(model, trainer, one, load, gpu=gpus) for one in (policy, critic) if one),
        copied=copied,
        published=VERSIONS * (FP32 if adapters else ITEM_BYTES[model.dtype]) * trained,
        checkpoint=(FP32 + moment) * (trained + values),
        store=rollout.max_response_length * stored,
        ranks=trainer.world,
        here=trainer.ranks_per_node,
    )


def lora_weights(model: Model, size: Size, adapters: Adapters) -> float:
    """The model and its adapters; frozen linear layers have the type in which the trainer computes, or 4 bits."""
    others = size.parameters - adapters.frozen
    frozen = BITS_BYTES if model.quantization else ITEM_BYTES[model.train_dtype]
    return FP32 * (others + adapters.parameters) + frozen * adapters.frozen


def full_length(rollout: Rollout) -> int:
    """Tokens of the longest sample."""
    return rollout.max_prompt_length + rollout.max_response_length


# A trainer's largest pass on one rank.
#
# What autograd keeps was counted on Llama and Qwen in transformers: per token and layer six numbers of the hidden
# size in float32, and in the type of the computation four of the queries' width (queries, expanded keys and values,
# output) and four of the intermediate size. Measured peaks of one and two ranks agree (`tests/check/devices`).

LOGITS_BYTES, GPU_LOGITS_BYTES, GPU_ROWS_BYTES = 1 << 28, 1 << 30, 1 << 27
"""Sizes of the buffer in which logits are made, and on a GPU of the rows that are worked on, of which there are four
copies (rhymed_workers.trainer.policy.head)."""

KEPT_SCORES, MADE_SCORES = 3, 2
"""Copies of a layer's scores in transformers' own attention: at most those of Gemma 2 and gpt-oss, kept for the
gradient, and while they are made."""


def pass_bytes(model: Model, trainer: Trainer, size: Size, load: Workload, *, gpu: bool = False) -> float:
    """`gpu`: whether a GPU computes it."""
    item, tokens = ITEM_BYTES[model.train_dtype], load.pass_tokens
    ends, logits = size.vocabulary * size.hidden, float(load.pass_tokens * size.vocabulary * FP32)
    inputs = FP32 * size.hidden * size.layers if trainer.gradient_checkpointing else 0
    layers = 1 if trainer.gradient_checkpointing else size.layers  # whose inner numbers are there at once
    found = tokens * (inputs + layers * activation_bytes(size, item))
    if size.scores:
        found += tokens * load.width * size.heads * FP32 * (KEPT_SCORES * layers + MADE_SCORES)
    found += min(GPU_LOGITS_BYTES, logits) + 4 * min(GPU_ROWS_BYTES, logits) if gpu else min(LOGITS_BYTES, logits)
    if not trainer.lora:
        found += FP32 * ends  # the head's gradient
    elif model.quantization:
        found += size.hidden * size.intermediate * (item + ITEM_BYTES[model.dtype])  # an unpacked layer
    if item < FP32:  # copies for each pass, where weights are neither sharded nor frozen
        found += item * (ends + (0 if trainer.lora or trainer.world > 1 else layers * size.layer))
    if trainer.world > 1:  # gathered layers, and gradients before they are summed
        found += FP32 * size.ends + 2 * item * size.layer
        found += 0 if trainer.lora else FP32 * (ends + 2 * size.layer)
    return found


def activation_bytes(size: Size, item: int) -> float:
    """Per token and layer. `item`: bytes of a number in the computation."""
    cast = size.hidden if item < FP32 else 0
    query, key_value = size.heads * size.head, size.key_value_heads * size.head
    return FP32 * 6 * size.hidden + item * (cast + 4 * query + 4 * size.intermediate + 2 * key_value)


# An engine.


@dataclass(frozen=True)
class Engine:
    """Bytes of an engine on a CPU, or of its share of one GPU."""

    weights: float
    working: float  # a pass, libraries, graphs
    sequence: float  # keys and values of one sample at full length


def engine_needs(config: Config, size: Size, *, gpus: bool) -> Engine:
    rollout, item = config.rollout, ITEM_BYTES[config.model.dtype]
    tensor, pipeline = (rollout.tensor_parallel, rollout.pipeline_parallel) if gpus else (1, 1)
    layers, heads = math.ceil(size.layers / pipeline), max(1, math.ceil(size.key_value_heads / tensor))
    sequence = 2.0 * layers * heads * size.head * item * full_length(rollout)
    if not gpus:
        return Engine(item * size.parameters, ENGINE_BYTES, sequence)
    weight = next((number for kind, number in QUANTIZED_BYTES.items() if rollout.quantization.startswith(kind)), item)
    weights = (weight * (size.parameters - size.ends) + item * size.ends) / rollout.engine_gpus
    tokens = rollout.batch_tokens or BATCH_TOKENS
    layer = tokens * item * (4 * size.hidden + 3 * math.ceil(size.intermediate / tensor))
    drafted = config.drafts.max_length if config.drafts.method != "none" else 0
    rows = min(tokens, rollout.max_concurrency * (1 + drafted))
    if drafted and config.drafts.budget == "rate":
        most = verifying_tokens(rollout.max_concurrency, max(1, size.vocabulary) * item)
        rows = min(rows, most + rollout.max_concurrency)
    logits = rows * size.vocabulary * (item + FP32)
    return Engine(weights, CONTEXT_BYTES + GRAPH_BYTES + layer + logits, sequence)


# This machine.


def describe(config: Config, models: Models, need: Needs, machine: Machine, *, gpus: bool = False) -> Section:
    """`gpus`: trainer and engines compute on GPUs, see `check.devices`."""
    trainer, size = config.trainer, models.policy
    section = Section("memory and disk (estimates)")
    section.add("model", f"{size.architecture}, {size.parameters / 1e6:,.1f} M parameters")
    if trainer.lora and models.adapters:
        section.add("LoRA", lora.describe(trainer.lora, models.adapters))
    _memory(section, config, size, need, machine, gpus=gpus)
    _disk(section, config, need, machine)
    return section


def _memory(section: Section, config: Config, size: Size, need: Needs, machine: Machine, *, gpus: bool) -> None:
    rollout = config.rollout
    least = need.copied + need.here * TRAINER_BYTES
    least += need.published if machine.shared_free >= need.published else 0
    if rollout.engine == "vllm":
        least += rollout.workers * ENGINE_BYTES
    if not gpus:
        ranks = f"each of {need.ranks} ranks: " if need.ranks > 1 else ""
        section.add("trainer", f"{ranks}{need}")
        least += need.here * need.kept
    if rollout.engine == "vllm" and not gpus:
        engine = engine_needs(config, size, gpus=False)
        least += rollout.workers * (engine.weights + rollout.kv_cache_gib * GIB)
        fit = int(rollout.kv_cache_gib * GIB // max(1, engine.sequence))
        parts = f"weights {size_of(engine.weights)}, kv_cache_gib = {rollout.kv_cache_gib:g}, libraries"
        section.add("engines", f"{rollout.workers}, each: {parts}; {counted(fit, 'sample')} at full length")
        if not fit:
            section.errors.append(
                f"rollout.kv_cache_gib = {rollout.kv_cache_gib:g}: one sample of"
                f" max_prompt_length + max_response_length = {full_length(rollout)} tokens needs"
                f" {size_of(engine.sequence)}: raise it, or lower them"
            )
    total = least + (0 if gpus else need.here * need.working)
    section.add("memory", f"{size_of(total)} of {size_of(machine.memory_free)} available")
    if least > machine.memory:
        section.errors.append(
            f"memory: {size_of(least)} are needed even for the shortest responses, this machine has"
            f" {size_of(machine.memory)}: use a smaller model, fewer rollout.workers or a smaller"
            " rollout.kv_cache_gib"
        )
    elif total > machine.memory_free:
        section.warnings.append(
            f"memory: about {size_of(total)} are needed, {size_of(machine.memory_free)} are available: lower"
            " trainer.micro_tokens, rollout.workers or rollout.kv_cache_gib, set trainer.async_checkpoints = false,"
            " or end other programs"
        )
    section.add("/dev/shm", f"{size_of(need.published)} for weights, {size_of(machine.shared_free)} free")
    if need.published > machine.shared_free:
        section.warnings.append(
            f"/dev/shm has {size_of(machine.shared_free)} free, published weights need {size_of(need.published)}:"
            " they will go through the run's folder, which is slower"
        )


def _disk(section: Section, config: Config, need: Needs, machine: Machine) -> None:
    trainer = config.trainer
    checkpoints, most = trainer.stored_checkpoints * need.checkpoint, config.store.map_gib * GIB
    kept = f"{trainer.stored_checkpoints} checkpoints of {size_of(need.checkpoint)}"
    section.add("disk", f"{kept}, store at most {size_of(need.store)}; {size_of(machine.disk_free)} free")
    if checkpoints + min(need.store, most) > machine.disk_free:
        found = section.errors if checkpoints > machine.disk_free else section.warnings
        best = " set trainer.keep_best = false," if trainer.keep_best else ""
        found.append(
            f"disk: {kept} and the store take {size_of(checkpoints + min(need.store, most))},"
            f" {size_of(machine.disk_free)} are free: lower trainer.keep_checkpoints,{best} or set run.folder to"
            " another disk"
        )
    if need.store > most:
        section.warnings.append(
            f"store.map_gib = {config.store.map_gib:g}, but if all responses are long the store takes"
            f" {size_of(need.store)}: raise it; it takes disk only as needed"
        )
