"""Work-conserving: longest forecast first, taken by whoever has room, and stragglers split off and moved.

A step ends with its longest sample, so that one has to begin first; with the rest nobody idles as long as anything
waits, of this step or, as far as the staleness bound and writing ahead allow, of the next. Where no history is, a few
samples of every group go first: how long they run tells how long their siblings will.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain

from rhymed_broker.pipe.fair import share
from rhymed_broker.pipe.view import Expect, Move, Placement, Policy, Running, Seat, Shelf, Snapshot, load
from rhymed_broker.table import Sample

PROBES = 2  # samples of a group of which nothing is known; how they go tells about the others
NEAR = 0.8  # of the longest forecast: siblings on one worker are worth that
WORTH = 256  # tokens left, below which a move costs more than it brings
LIGHTER = 0.5  # of its worker's load must the other's be


def longest_first(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    return sorted(prompts, key=lambda prompt: (-expect(prompt), prompt))


def pull(snapshot: Snapshot) -> list[Placement]:
    """Who has room takes the next; of several the least loaded takes a group, as far as shares are even."""
    placed: list[Placement] = []
    loads = {seat.name: load(seat) for seat in snapshot.seats}
    for shelf in snapshot.shelves:
        able = [seat for seat in snapshot.seats if loads[seat.name] < seat.slots and shelf.fits(seat)]
        if len(able) > 1 and not shelf.unprobed:
            placed += share(shelf, able, loads)
            continue
        taken: dict[Sample, None] = {}
        for seat in sorted(able, key=lambda seat: loads[seat.name] / seat.slots):
            found = _next(shelf, seat, seat.slots - loads[seat.name], taken)
            loads[seat.name] += len(found)
            if found:
                placed.append(Placement(seat.name, found))
    return placed


def _next(shelf: Shelf, seat: Seat, room: int, taken: dict[Sample, None]) -> list[Sample]:
    """Longest first; of groups that are nearly as long, siblings of what it has. Of the unknown a few, to know them.

    `taken`: what others have been given just now; kept up to date.
    """
    longest = next((shelf.expected.get(prompt, 0.0) for prompt in shelf.groups), 0.0)
    begun = {
        id.prompt: None
        for id in seat.held
        if id.step == shelf.step
        and id.prompt in shelf.groups
        and shelf.expected.get(id.prompt, 0.0) >= NEAR * longest
    }
    found: list[Sample] = []
    for rest in (False, True):
        for prompt in chain(begun, shelf.groups):
            limit = len(found) + PROBES if prompt in shelf.unprobed and not rest else room
            for sample in shelf.groups[prompt]:
                if len(found) >= min(limit, room):
                    break
                if sample not in taken:
                    taken[sample] = None
                    found.append(sample)
            if len(found) == room:
                return found
        if not shelf.unprobed:
            break
    return found


def split_off(running: Running) -> list[Move]:
    """The longest of what is left, from workers with much to workers with little."""
    loads = {name: load(seat) for name, seat in running.seats.items()}
    lightest = [(busy, name) for name, busy in loads.items()]
    heapq.heapify(lightest)
    most = LIGHTER * max(loads.values(), default=0)
    if not lightest or lightest[0][0] + 1 > most:
        return []
    moves: list[Move] = []
    for left, _, sample in sorted(((running.left(one), one.id, one) for one in running.samples), reverse=True):
        busy, target = lightest[0]
        if left < WORTH or busy + 1 > most:
            break
        if busy + 1 <= LIGHTER * loads.get(sample.worker, 0) and busy < running.seats[target].slots:
            moves.append(Move(sample, target))
            heapq.heapreplace(lightest, (busy + 1, target))
            loads[target] += 1
            loads[sample.worker] -= 1
    return moves


FLOW = Policy(rank=longest_first, deal=None, place=pull, move=split_off)
