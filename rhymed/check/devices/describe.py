"""The report on GPUs: what each process has there, and what does not fit, with a cure. Pure."""

from __future__ import annotations

from collections.abc import Callable

from rhymed.check.devices.misfits import Room, engine_misfits, trainer_misfits, turn_misfits
from rhymed.check.devices.needs import (
    CONTEXT_BYTES,
    EngineNeeds,
    TrainerNeeds,
    heads_problem,
)
from rhymed.check.devices.shape import Shape
from rhymed.check.memory import Needs, listed
from rhymed.check.report import Section
from rhymed.config import Config
from rhymed.gpus.inventory import Inventory
from rhymed.gpus.placement import generates_on_gpus, problems, seats, trains_on_gpus
from rhymed.text import counted, size_of


def describe(
    config: Config, inventory: Inventory, shape: Shape, needs: Callable[[Config], Needs], parameters: int = 0
) -> Section:
    """`needs`: of a whole run with these settings, see `memory.needs`. `parameters`: 0: only the shape is known."""
    section, smallest = Section("GPUs (estimates)"), inventory.kinds[0].bytes
    parameters, most = parameters or shape.parameters, max(map(len, inventory.nodes))
    room = Room(needs, shape, parameters, smallest, most)
    section.add("GPUs", str(inventory))
    section.add("model", f"{shape.architecture}, {parameters / 1e9:,.2f} B parameters")
    section.errors += problems(config, inventory)
    trainer = room.trainer(config) if trains_on_gpus(config) else None
    engine = room.engine(config) if generates_on_gpus(config) else None
    if trainer:
        need = needs(config)
        each = f"{size_of(trainer.most)} on each of {counted(need.ranks, 'GPU')}"
        section.add("trainer", f"{each}: {listed(need)}, libraries {size_of(CONTEXT_BYTES)}")
        section.errors += trainer_misfits(config, room)
    if engine:
        section.add("engines", _engines(config, engine, smallest))
        if problem := heads_problem(config, shape, most):
            section.errors.append(problem)
        section.errors += engine_misfits(config, room)
    if trainer and engine and config.schedule.colocate:
        section.add("colocated", _turns(config, trainer, engine, smallest))
        section.errors += turn_misfits(config, room)
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


def _seats(config: Config, inventory: Inventory, node: int) -> str:
    here = [seat for seat in seats(config, inventory) if seat.node == node]
    return "; ".join(f"{seat.name} on GPU {_span(seat.gpus)}" for seat in here)


def _span(gpus: tuple[int, ...]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"
