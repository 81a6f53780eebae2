"""Which process of a run has which GPUs. Pure.

The trainer's ranks take the first `trainer.gpus` of each of the first `trainer.nodes` machines. Engines take the next
ones, each `tensor_parallel x pipeline_parallel` of one machine; with `schedule.colocate` they begin at the first GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhymed.config import Config
from rhymed.gpus.inventory import VISIBLE, Inventory
from rhymed.text import counted


@dataclass(frozen=True)
class Seat:
    """GPUs of one process, or of the trainer's ranks on one machine."""

    name: str
    node: int
    gpus: tuple[int, ...]  # of that machine, from 0


def trains_on_gpus(config: Config) -> bool:
    return config.trainer.engine == "torch" and config.trainer.device != "cpu" and config.trainer.steps != 0


def generates_on_gpus(config: Config) -> bool:
    return config.rollout.engine == "vllm"


def seats(config: Config, inventory: Inventory) -> list[Seat]:
    """Of all that fit; `problems` names what does not."""
    trainer, rollout = config.trainer, config.rollout
    taken: list[Seat] = []
    if trains_on_gpus(config):
        for node in range(min(trainer.nodes, len(inventory.nodes))):
            if trainer.gpus <= len(inventory.nodes[node]):
                taken.append(Seat("trainer", node, tuple(range(trainer.gpus))))
    if not generates_on_gpus(config):
        return taken
    first, number = {seat.node: len(seat.gpus) for seat in taken}, 0
    reached = inventory.nodes[:1] if inventory.names else inventory.nodes  # `rhymed run` starts processes here only
    for node, gpus in enumerate(reached):
        start = 0 if config.schedule.colocate else first.get(node, 0)
        while number < rollout.workers and start + rollout.engine_gpus <= len(gpus):
            taken.append(Seat(f"rollout-{number}", node, tuple(range(start, start + rollout.engine_gpus))))
            start, number = start + rollout.engine_gpus, number + 1
    return taken


def problems(config: Config, inventory: Inventory) -> Iterator[str]:
    """Why the run's processes do not get their GPUs."""
    trainer, rollout, node = config.trainer, config.rollout, min(map(len, inventory.nodes))
    if len(inventory.kinds) > 1:
        kinds = " and ".join(map(str, inventory.kinds))
        yield (
            f"GPUs of several kinds ({kinds}): ranks that work together would wait for the slowest, and memory is"
            f" counted for all alike: choose those of one kind by {VISIBLE}, or start workers on the others yourself"
        )
    if trains_on_gpus(config) and (trainer.gpus > node or trainer.nodes > len(inventory.nodes)):
        yield (
            f"trainer.nodes x trainer.gpus = {trainer.nodes} x {trainer.gpus}, but there {_are(inventory)}: more"
            " ranks than devices; lower them"
        )
    if not generates_on_gpus(config):
        return
    if rollout.engine_gpus > node:
        yield (
            f"rollout.tensor_parallel x pipeline_parallel = {rollout.tensor_parallel} x {rollout.pipeline_parallel}"
            f" GPUs for one engine, but a machine has {node}: lower one of them"
        )
        return
    placed = sum(seat.name.startswith("rollout-") for seat in seats(config, inventory))
    if placed < rollout.workers:
        yield (
            f"rollout.workers = {rollout.workers} engines of {counted(rollout.engine_gpus, 'GPU')} each, but only"
            f" {placed} find GPUs ({inventory}): {_room_for_engines(config, placed)}"
        )


def _room_for_engines(config: Config, placed: int) -> str:
    """What to change so that all engines find GPUs."""
    cures = [f"lower rollout.workers to {placed}"] if placed else []
    cures += ["lower rollout.tensor_parallel"] if config.rollout.tensor_parallel > 1 else []
    if config.schedule.colocate or not trains_on_gpus(config):
        cures.append("add GPUs")
    else:
        cures += ["lower trainer.gpus"] if config.trainer.gpus > 1 else []
        cures += ["add GPUs for engines", "set schedule.colocate = true"]
    return ", or ".join(cures)


def visible(config: Config, inventory: Inventory | None) -> dict[str, dict[str, str]]:
    """Environment of each process on this machine, by its name; empty without GPUs."""
    if inventory is None or not inventory.names:
        return {}
    here = [seat for seat in seats(config, inventory) if seat.node == 0]
    found = {seat.name: {VISIBLE: ",".join(inventory.names[gpu] for gpu in seat.gpus)} for seat in here}
    if not trains_on_gpus(config) and config.trainer.device != "cuda":
        found["trainer"] = {VISIBLE: ""}  # without a seat it would take an engine's memory
    return found


def _are(inventory: Inventory) -> str:
    return f"{'is' if len(inventory.gpus) == 1 else 'are'} {inventory}"
