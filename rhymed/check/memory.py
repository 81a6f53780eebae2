"""What a run will take of memory and disk, as arithmetic over the model's size; and the verdict for this machine.

An estimate from above, within some tens of per cent: what the trainer and the engines really keep. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhymed.check.arithmetic import Workload
from rhymed.check.report import GIB, Section, gib
from rhymed.check.size import Size
from rhymed.config import Config

FP32 = 4  # bytes
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
LOGITS_BYTES = 1 << 28
"""Logits are made for so many bytes at a time (rhymed_workers.trainer.policy), in three buffers."""

LOGITS_BUFFERS = 3
VERSIONS = 3  # published: two are kept, one is being written (rhymed_workers.trainer.publish)
TRAINER_BYTES = 0.4 * GIB  # of libraries: torch, transformers
ENGINE_BYTES = 1.0 * GIB  # of libraries and buffers, an engine
STORED_BYTES = 3  # a token at rest
LOGPROB_BYTES = 4  # a token, until its step is in every checkpoint that is kept


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
    working: float  # activations and logits of the largest pass
    engine: float  # each
    sequence: float  # keys and values of one sample at full length
    published: float
    checkpoint: float  # each
    store: float  # at most, of the whole run

    @property
    def trainer(self) -> float:
        return self.weights + self.gradients + self.moments + self.reference + self.working + TRAINER_BYTES


def needs(config: Config, size: Size, load: Workload) -> Needs:
    parameters, tokens = size.parameters, load.pass_tokens
    logits = LOGITS_BUFFERS * min(LOGITS_BYTES, tokens * size.vocabulary * FP32)
    tokens_in_all = load.steps * load.samples * config.rollout.max_response_length
    saved = config.trainer.checkpoint_every * config.trainer.keep_checkpoints
    unsaved = min(load.steps, saved) * load.samples * config.rollout.max_response_length
    vllm, item = config.rollout.engine == "vllm", ITEM_BYTES[config.model.dtype]
    return Needs(
        weights=FP32 * parameters,
        gradients=FP32 * parameters,
        moments=2 * FP32 * parameters,
        reference=FP32 * parameters if config.trainer.kl_coef else 0,
        working=tokens * activation_bytes(size) + logits,
        engine=item * parameters + config.rollout.kv_cache_gib * GIB + ENGINE_BYTES if vllm else 0,
        sequence=2 * size.layers * size.key_value * item * full_length(config) if vllm else 0,
        published=VERSIONS * item * parameters,
        checkpoint=3 * FP32 * parameters,
        store=STORED_BYTES * tokens_in_all + LOGPROB_BYTES * unsaved,
    )


def full_length(config: Config) -> int:
    """Tokens of the longest sample."""
    return config.rollout.max_prompt_length + config.rollout.max_response_length


def activation_bytes(size: Size) -> float:
    """What a token keeps for the backward pass; measured on Llama: six hidden, three intermediate, keys, values."""
    return FP32 * size.layers * (6 * size.hidden + 3 * size.intermediate + 2 * size.key_value)


def describe(config: Config, size: Size, load: Workload, machine: Machine) -> tuple[Section, list[str], list[str]]:
    """The section, what must be changed, what is worth a warning."""
    need, section = needs(config, size, load), Section("memory and disk (estimates)")
    section.add("model", f"{size.architecture}, {size.parameters / 1e6:,.1f} M parameters")
    kept = f"weights {gib(need.weights)}, gradients {gib(need.gradients)}, Adam {gib(need.moments)}"
    kept += f", reference model {gib(need.reference)}" if need.reference else ""
    section.add("trainer", f"{gib(need.trainer)}: {kept}, the largest pass {gib(need.working)}")
    if need.engine:
        fit = int(config.rollout.kv_cache_gib * GIB // max(1, need.sequence))
        parts = f"weights ({config.model.dtype}), kv_cache_gib = {config.rollout.kv_cache_gib:g}, libraries"
        each = f"{config.rollout.workers} x {gib(need.engine)}"
        section.add("engines", f"{each}: {parts}; {fit} samples fit at full length")
    section.add("published", f"{gib(need.published)} in /dev/shm ({gib(machine.shared_free)} free)")
    total = in_memory(config, need, machine)
    section.add("together", f"{gib(total)} of {gib(machine.memory_free)} available ({gib(machine.memory)} in all)")
    section.add("checkpoints", f"{config.trainer.keep_checkpoints} kept + 1 in writing, {gib(need.checkpoint)} each")
    section.add("store", f"at most {gib(need.store)} (store.map_gib = {config.store.map_gib:g})")
    section.add("disk", f"{gib(on_disk(config, need))} at most, {gib(machine.disk_free)} free")
    return section, list(wrong(config, need, machine)), list(_warnings(config, need, machine))


def in_memory(config: Config, need: Needs, machine: Machine) -> float:
    shared = need.published if machine.shared_free >= need.published else 0
    return need.trainer + config.rollout.workers * need.engine + shared


def on_disk(config: Config, need: Needs) -> float:
    return (config.trainer.keep_checkpoints + 1) * need.checkpoint + min(need.store, config.store.map_gib * GIB)


def wrong(config: Config, need: Needs, machine: Machine) -> Iterator[str]:
    """What cannot work."""
    least = in_memory(config, need, machine) - need.working
    if least > machine.memory:
        yield (
            f"memory: {gib(least)} are needed even for the shortest responses, this machine has"
            f" {gib(machine.memory)}: use a smaller model, fewer rollout.workers or a smaller rollout.kv_cache_gib"
        )
    if need.sequence > config.rollout.kv_cache_gib * GIB:
        yield (
            f"rollout.kv_cache_gib = {config.rollout.kv_cache_gib:g}: one sample of max_prompt_length +"
            f" max_response_length = {full_length(config)} tokens needs {gib(need.sequence)}: raise it, or lower them"
        )
    checkpoints = (config.trainer.keep_checkpoints + 1) * need.checkpoint
    if checkpoints > machine.disk_free:
        yield (
            f"disk: {config.trainer.keep_checkpoints} + 1 checkpoints take {gib(checkpoints)}, free are"
            f" {gib(machine.disk_free)}: lower trainer.keep_checkpoints, or set run.folder to another disk"
        )


def _warnings(config: Config, need: Needs, machine: Machine) -> Iterator[str]:
    total = in_memory(config, need, machine)
    if total > machine.memory_free and total - need.working <= machine.memory:
        yield (
            f"memory: about {gib(total)} are needed, {gib(machine.memory_free)} are available: lower"
            " trainer.micro_tokens, rollout.workers or rollout.kv_cache_gib, or end other programs"
        )
    if need.published > machine.shared_free:
        yield (
            f"/dev/shm has {gib(machine.shared_free)} free, published weights need {gib(need.published)}: they"
            " will go through the run's folder, which is slower"
        )
    if need.store > config.store.map_gib * GIB:
        yield (
            f"store.map_gib = {config.store.map_gib:g}, but if all responses are long the store takes"
            f" {gib(need.store)}: raise it; disk is taken only as needed"
        )
    if on_disk(config, need) > machine.disk_free >= (config.trainer.keep_checkpoints + 1) * need.checkpoint:
        yield (
            f"disk: checkpoints and store may take {gib(on_disk(config, need))}, free are {gib(machine.disk_free)}"
            " (trainer.keep_checkpoints, run.folder)"
        )
