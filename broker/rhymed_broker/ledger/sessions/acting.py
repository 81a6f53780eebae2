"""Assigns samples whose environment has to answer to environment workers. Pure, part of the ledger.

A sample goes to the worker that has its environment, and waits for it while it is here, since another one would have
to rebuild the environment. A sample without such a worker goes to the one with the most room.
"""

from __future__ import annotations

from rhymed_broker.ledger.actions import Act
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Workers
from rhymed_broker.pipe.policy import load
from rhymed_broker.slices import CHUNK, Slices, sliced
from rhymed_broker.states import Sample


class Acting:
    def __init__(self, samples: Samples, workers: Workers) -> None:
        self._samples, self._workers = samples, workers

    @sliced
    def place(self, now: float) -> Slices[list[Act]]:
        """Oldest turns first, as many as workers have room for."""
        free = self._workers.free["environment"]
        placed: dict[str, list[Sample]] = {}
        if not (free and self._samples.queues["turned"]):
            return []
        room = {name: worker.slots - load(worker) for name, worker in free.items()}
        left = sum(room.values())
        for looked, sample in enumerate(self._samples.queues["turned"], 1):
            name = self._host(sample) or max(room, key=room.__getitem__)
            if room.get(name, 0) > 0:
                room[name] -= 1
                left -= 1
                placed.setdefault(name, []).append(sample)
            if not left:
                break
            if not looked % CHUNK:
                yield
        return [self._assign(name, samples, now) for name, samples in placed.items()]

    def _host(self, sample: Sample) -> str:
        """The worker that has its environment; empty: none has."""
        worker = self._workers.by_name.get(sample.host)
        return "" if worker is None or worker.drained else worker.name

    def _assign(self, name: str, samples: list[Sample], now: float) -> Act:
        self._samples.move_all(samples, "assigned", now, name)
        self._workers.hold(self._workers.by_name[name], samples, now)
        return Act(name, [sample.id for sample in samples])
