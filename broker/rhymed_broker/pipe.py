"""Which worker gets which samples, in which order. Pure functions over a snapshot; the ledger checks what they say.

A policy sees live views of the ledger's own books (building a snapshot costs nothing) and must not change them. It
places samples on workers that have room and whose version suffices for the step; what it leaves out stays waiting.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from rhymed.messages import Role
from rhymed_broker.table import Sample


class Seat(Protocol):
    """A worker with at least one free slot, as policies see it; none has newer weights than the run."""

    name: str
    role: Role
    slots: int
    version: int  # policy version loaded; -1: none

    @property
    def held(self) -> Collection[object]: ...  # samples in hand: a mapping from id to Sample


class Shelf(NamedTuple):
    """One step's samples that want a worker."""

    step: int
    oldest_version: int  # rollout workers with older weights may not take them,
    newest_version: int  # nor those with newer ones
    groups: Mapping[str, Mapping[Sample, None]]  # prompt -> its samples, both in order of arrival; none is empty
    size: int  # samples


class Snapshot(NamedTuple):
    """What a policy decides on."""

    shelves: Sequence[Shelf]  # evaluations, then steps, oldest first
    seats: Sequence[Seat]
    forecasts: Mapping[str, float] = {}  # prompt -> expected response tokens, where history knows


class Placement(NamedTuple):
    worker: str
    samples: list[Sample]


Policy = Callable[[Snapshot], list[Placement]]


def fair(snapshot: Snapshot) -> list[Placement]:
    """Shelf after shelf, least loaded worker first, all to the same share of their slots.

    A group stays on one worker as far as that worker's share goes: siblings share a prefix and draft for each other,
    but nobody idles for it.
    """
    loads = {seat.name: len(seat.held) for seat in snapshot.seats}
    placed: list[Placement] = []
    for shelf in snapshot.shelves:
        able = [
            seat
            for seat in snapshot.seats
            if (shelf.oldest_version <= seat.version <= shelf.newest_version or seat.role == "reward")
            and loads[seat.name] < seat.slots
        ]
        if able:
            placed += _deal(shelf, able, loads)
    return placed


def _deal(shelf: Shelf, able: Sequence[Seat], loads: dict[str, int]) -> list[Placement]:
    share = (shelf.size + sum(loads[seat.name] for seat in able)) / sum(seat.slots for seat in able)
    heap = [(loads[seat.name] / seat.slots, order, seat) for order, seat in enumerate(able)]
    heapq.heapify(heap)
    placed: list[Placement] = []
    for group in shelf.groups.values():
        left = list(group)
        while left and heap:
            _, order, seat = heapq.heappop(heap)
            load = loads[seat.name]
            even = math.ceil(share * seat.slots - 1e-9)  # its share in samples
            take = min(len(left), max(1, min(seat.slots, even) - load))
            placed.append(Placement(seat.name, left[:take]))
            del left[:take]
            loads[seat.name] = load = load + take
            if load < seat.slots:
                heapq.heappush(heap, (load / seat.slots, order, seat))
        if not heap:
            break
    return placed
