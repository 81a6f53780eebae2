"""How many runs of a sweep fit on this machine at once, by `rhymed check`'s arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rhymed.check.memory import Machine
from rhymed.config import Config
from rhymed.gpus.inventory import VISIBLE, Inventory
from rhymed.gpus.placement import seats
from rhymed.text import counted, size_of

AROUND = 0.5 * (1 << 30)  # bytes of broker, store and reward workers


@dataclass(frozen=True)
class Places:
    """`environments`: of each place; those of different places name different GPUs."""

    environments: Sequence[Mapping[str, str]]
    why: str = ""  # there are fewer than were asked for

    def __len__(self) -> int:
        return len(self.environments)


@dataclass(frozen=True)
class Load:
    """What one run needs."""

    memory: float  # bytes, without what is around the models
    gpus: int = field(default=0)


def load_of(config: Config, memory: float, inventory: Inventory | None) -> Load:
    taken = seats(config, inventory) if inventory is not None else []
    return Load(memory, len({gpu for seat in taken if seat.node == 0 for gpu in seat.gpus}))


def places(wanted: int | None, loads: Sequence[Load], machine: Machine, inventory: Inventory | None) -> Places:
    """At least one: whether a single run fits is checked elsewhere. `wanted`: None: as many as fit."""
    if wanted == 1:
        return Places([{}])
    memory = max(load.memory for load in loads) + AROUND
    fit = int(machine.memory_free // memory)
    why = f"each needs about {size_of(memory)}, {size_of(machine.memory_free)} are available"
    gpus = max(load.gpus for load in loads)
    names = inventory.names if inventory else ()
    if gpus and names and len(names) // gpus < fit:
        fit, why = len(names) // gpus, f"each takes {counted(gpus, 'GPU')} of {len(names)}"
    count = max(1, min(len(loads), fit if wanted is None else min(wanted, fit)))
    short = wanted is not None and count < min(wanted, len(loads))
    shares = [names[place * gpus : (place + 1) * gpus] for place in range(count)] if gpus and names else []
    environments = [{VISIBLE: ",".join(share)} for share in shares] if shares else [{} for _ in range(count)]
    return Places(environments, why if short else "")
