"""How many ranks train, and where each one sits. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rhymed.core.config import Trainer


@dataclass(frozen=True)
class Seat:
    """One rank's place: `local` of the `each` ranks on node `node`, of `nodes` nodes."""

    node: int
    local: int
    each: int
    nodes: int

    @property
    def rank(self) -> int:
        return self.node * self.each + self.local

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.each * self.nodes


def seats(trainer: Trainer, node: int) -> list[Seat]:
    """Of one node's ranks."""
    each = trainer.ranks_per_node
    return [Seat(node, local, each, trainer.nodes) for local in range(each)]


def too_few(wanted: int, found: int) -> str:
    return (
        f"trainer.gpus = {wanted}, but torch finds {found} GPU{'' if found == 1 else 's'} on this machine: lower it,"
        " or set trainer.device = 'cpu' and trainer.ranks for ranks on processors"
    )
