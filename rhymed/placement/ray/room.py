"""Whether a run's processes fit on the machines of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhymed.config import Config
from rhymed.placement.plan import Seat, seats
from rhymed.placement.ray.words import Node
from rhymed.text import counted

CURES = {
    "trainer": "lower trainer.nodes, trainer.gpus or placement.cpus.trainer, or add nodes",
    "rollout": "lower rollout.workers or placement.cpus.rollout, or add nodes; with placement.max the run starts with"
    " fewer, and Ray's autoscaler may add nodes",
    "environment": "lower environment.workers or placement.cpus.environment, or add nodes",
    "reward": "lower reward.workers or placement.cpus.reward, or add nodes",
}


def problems(config: Config, nodes: Sequence[Node]) -> Iterator[str]:
    """What does not fit, each with a cure. Store and broker are beside `rhymed run`, whatever Ray has there."""
    free = [[node.cpus, float(node.gpus), node.memory_gib] for node in nodes]
    for seat in seats(config, gpus=any(node.gpus for node in nodes)):
        if seat.kind == "pinned":
            continue
        enough = max(1, config.placement.min) if seat.name == "rollout" and config.placement.max else seat.count
        if (placed := _take(seat, free)) >= min(enough, seat.count):
            continue
        spread = " on different nodes" if seat.kind == "gang" and seat.count > 1 else ""
        processes = counted(seat.count, f"{seat.name} process", f"{seat.name} processes")
        yield (
            f"{processes}{spread} with {needs(seat)} each, but only {placed} fit on Ray's {_listed(nodes)}:"
            f" {CURES[seat.name]}"
        )


def needs(seat: Seat) -> str:
    """Of one process."""
    parts = [counted(seat.gpus, "GPU")] if seat.gpus else []
    parts += [counted(seat.cpus, "CPU")]
    parts += [f"{seat.memory_gib:g} GiB"] if seat.memory_gib else []
    return ", ".join(parts)


def _take(seat: Seat, free: list[list[float]]) -> int:
    """How many processes of the seat fit; takes their room. A gang has one on a machine."""
    want = (seat.cpus, float(seat.gpus), seat.memory_gib)
    placed = 0
    for room in free:
        while placed < seat.count and all(has >= need for has, need in zip(room, want, strict=True)):
            room[:] = [has - need for has, need in zip(room, want, strict=True)]
            placed += 1
            if seat.kind == "gang":
                break
    return placed


def _listed(nodes: Sequence[Node]) -> str:
    each = [f"{node.cpus:g} CPUs{f', {node.gpus:g} GPUs' if node.gpus else ''}" for node in nodes]
    return f"{counted(len(nodes), 'node')} ({'; '.join(each)})"
