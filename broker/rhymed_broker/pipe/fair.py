"""Even shares, no forecast. `fair` serves scoring; `FIFO` is what peers do with rollouts: an equal part a worker."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from rhymed_broker.pipe.policy import (
    Deal,
    Expect,
    Placement,
    Policy,
    Seat,
    Shelf,
    Snapshot,
    as_given,
    load,
    stay,
    take,
)


def fair(snapshot: Snapshot) -> list[Placement]:
    """Shelf after shelf. What is dealt, each worker's own; what is not, least loaded worker first, all to the same
    share of their slots.

    A group stays on one worker as far as that worker's share goes: siblings share a prefix and draft for each other,
    but nobody idles for it.
    """
    loads = {seat.name: load(seat) for seat in snapshot.seats}
    placed: list[Placement] = []
    for shelf in snapshot.shelves:
        able = [seat for seat in snapshot.seats if shelf.fits(seat) and loads[seat.name] < seat.slots]
        if able:
            placed += share(shelf, able, loads) if shelf.deal is None else _own(shelf, shelf.deal, able, loads)
    return placed


def _own(shelf: Shelf, deal: Deal, able: Sequence[Seat], loads: dict[str, int]) -> list[Placement]:
    placed = []
    for seat in able:
        if taken := take(shelf, deal.get(seat.name, ()), seat.slots - loads[seat.name]):
            placed.append(Placement(seat.name, taken))
            loads[seat.name] += len(taken)
    return placed


def share(shelf: Shelf, able: Sequence[Seat], loads: dict[str, int]) -> list[Placement]:
    """The groups in their order, each to the least loaded. Keeps `loads` up to date: worker -> samples in slots."""
    part = (shelf.size + sum(loads[seat.name] for seat in able)) / sum(seat.slots for seat in able)
    heap = [(loads[seat.name] / seat.slots, order, seat) for order, seat in enumerate(able)]
    heapq.heapify(heap)
    placed: list[Placement] = []
    for group in shelf.groups.values():
        left = list(group)
        while left and heap:
            _, order, seat = heapq.heappop(heap)
            busy = loads[seat.name]
            even = math.ceil(part * seat.slots - 1e-9)  # its share in samples
            take = min(len(left), max(1, min(seat.slots, even) - busy))
            placed.append(Placement(seat.name, left[:take]))
            del left[:take]
            loads[seat.name] = busy = busy + take
            if busy < seat.slots:
                heapq.heappush(heap, (busy / seat.slots, order, seat))
        if not heap:
            break
    return placed


def deal_evenly(prompts: Sequence[str], seats: Sequence[Seat], expect: Expect) -> Deal:
    """As many prompts a worker as its part of the slots, in the order of `prompts`."""
    slots = sum(seat.slots for seat in seats)
    dealt: dict[str, Sequence[str]] = {}
    begin, passed = 0, 0
    for seat in seats:
        passed += seat.slots
        end = round(len(prompts) * passed / slots)
        dealt[seat.name] = prompts[begin:end]
        begin = end
    return dealt


FAIR = Policy(rank=as_given, deal=None, place=fair, move=stay)
FIFO = Policy(rank=as_given, deal=deal_evenly, place=fair, move=stay)
