"""The report on GPUs: what each process has there, and what does not fit, with a cure. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rhymed.check import memory
from rhymed.check.devices.needs import (
    CONTEXT_BYTES,
    EngineNeeds,
    TrainerNeeds,
    engine_needs,
    heads_problem,
    trainer_needs,
)
from rhymed.check.devices.shape import Shape
from rhymed.check.memory import Needs, listed
from rhymed.check.report import Section
from rhymed.config import Config
from rhymed.gpus.inventory import Inventory
from rhymed.gpus.placement import generates_on_gpus, problems, seats, trains_on_gpus
from rhymed.gpus.transport import choose
from rhymed.text import counted, size_of


def describe(config: Config, inventory: Inventory, shape: Shape, need: Needs, parameters: int = 0) -> Section:
    """`need`: of the whole run, see `memory.needs`; `parameters`: 0 if only the shape is known."""
    section, smallest = Section("GPUs (estimates)"), inventory.kinds[0].bytes
    parameters = parameters or shape.parameters
    section.add("GPUs", str(inventory))
    section.add("model", f"{shape.architecture}, {parameters / 1e9:,.2f} B parameters")
    section.errors += problems(config, inventory)
    trainer = trainer_needs(need, choose(config).transport) if trains_on_gpus(config) else None
    engine = engine_needs(config, shape, parameters) if generates_on_gpus(config) else None
    if trainer:
        most = f"{size_of(trainer.most)} on each of {counted(need.ranks, 'GPU')}"
        section.add("trainer", f"{most}: {listed(need)}, libraries {size_of(CONTEXT_BYTES)}")
        section.errors += _trainer_errors(config, trainer, smallest)
    if engine:
        section.add("engines", _engines(config, engine, smallest))
        if problem := heads_problem(config, shape, max(map(len, inventory.nodes))):
            section.errors.append(problem)
        section.errors += _engine_errors(config, engine, smallest)
    if trainer and engine and config.schedule.colocate:
        section.add("colocated", _turns(config, trainer, engine, smallest))
        section.errors += _turn_errors(config, trainer, engine, smallest)
    for node in range(len(inventory.nodes)):
        if here := _seats(config, inventory, node):
            section.add("placed" if node == 0 else "", f"node {node}: {here}" if len(inventory.nodes) > 1 else here)
    return section


def _engines(config: Config, engine: EngineNeeds, gpu: int) -> str:
    rollout = config.rollout
    budget = rollout.gpu_memory * gpu
    fit = int(max(0.0, engine.cache(budget)) // max(1.0, engine.sequence))
    return (
        f"{counted(rollout.workers, 'engine')} of {counted(rollout.engine_gpus, 'GPU')}, on each"
        f" {size_of(budget)} (rollout.gpu_memory = {rollout.gpu_memory:g}): weights {size_of(engine.weights)}, a pass"
        f" {size_of(engine.working)}, KV cache {size_of(max(0.0, engine.cache(budget)))}: {counted(fit, 'sample')} at"
        " full length"
    )


def _turns(config: Config, trainer: TrainerNeeds, engine: EngineNeeds, gpu: int) -> str:
    awake, training = trainer.waiting + config.rollout.gpu_memory * gpu, trainer.most + engine.asleep
    return (
        f"engines awake {size_of(awake)}, of it the trainer's {size_of(trainer.waiting)}; training"
        f" {size_of(training)}, of it sleeping engines {size_of(engine.asleep)}; of {size_of(gpu)}"
    )


def _trainer_errors(config: Config, trainer: TrainerNeeds, gpu: int) -> Iterator[str]:
    if trainer.most <= gpu:
        return
    settings, cures = config.trainer, []
    if not settings.gradient_checkpointing:
        cures.append("set trainer.gradient_checkpointing = true")
    if memory.full_length(config.rollout) > settings.micro_tokens:  # one sample is a pass of its own
        cures.append("lower rollout.max_response_length")
    elif trainer.kept + trainer.working / 4 <= gpu:
        cures.append("lower trainer.micro_tokens")
    else:
        cures.append("train on more GPUs (trainer.gpus, trainer.nodes)")
        if not settings.lora:
            cures.append("train adapters only ([trainer.lora])")
        elif config.model.train_dtype == "float32":
            cures.append("set model.train_dtype = 'bfloat16'")
    yield f"the trainer needs {size_of(trainer.most)} on each GPU, which has {size_of(gpu)}: {', or '.join(cures)}"


def _engine_errors(config: Config, engine: EngineNeeds, gpu: int) -> Iterator[str]:
    rollout = config.rollout
    cache = engine.cache(rollout.gpu_memory * gpu)
    if cache <= 0:
        yield (
            f"the model does not fit on an engine's GPU: weights {size_of(engine.weights)} and a pass"
            f" {size_of(engine.working)} are more than rollout.gpu_memory = {rollout.gpu_memory:g} of {size_of(gpu)}:"
            " raise rollout.tensor_parallel or gpu_memory, lower rollout.batch_tokens or max_concurrency, set"
            " rollout.quantization, or choose a smaller model"
        )
    elif cache < engine.sequence:
        yield (
            f"the KV cache of {size_of(cache)} holds no sample at full length ({size_of(engine.sequence)}): raise"
            " rollout.gpu_memory or tensor_parallel, or lower rollout.max_response_length"
        )


def _turn_errors(config: Config, trainer: TrainerNeeds, engine: EngineNeeds, gpu: int) -> Iterator[str]:
    share = config.rollout.gpu_memory
    if trainer.waiting + share * gpu > gpu:
        left = max(0.0, (gpu - trainer.waiting) / gpu)
        yield (
            f"schedule.colocate: the trainer keeps {size_of(trainer.waiting)} while engines are awake, so"
            f" rollout.gpu_memory = {share:g} is too much: set it to at most {int(left * 100) / 100:g}"
        )
    if trainer.most <= gpu < trainer.most + engine.asleep:
        yield (
            f"schedule.colocate: the trainer's {size_of(trainer.most)} and sleeping engines' {size_of(engine.asleep)}"
            f" are more than {size_of(gpu)}: lower trainer.micro_tokens"
        )


def _seats(config: Config, inventory: Inventory, node: int) -> str:
    here = [seat for seat in seats(config, inventory) if seat.node == node]
    return "; ".join(f"{seat.name} on GPU {_span(seat.gpus)}" for seat in here)


def _span(gpus: tuple[int, ...]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"
