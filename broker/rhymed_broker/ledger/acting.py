"""Assigns samples whose environment has to answer to environment workers. Pure, part of the ledger.

A sample goes to the worker that has its environment, and waits for it while it is here, since another one would have
to rebuild the environment. A sample without such a worker goes to the one with the most room, older steps first. A
worker opens at most `sessions` samples; one more only for a sample of a step that is older than samples that it has
open. These may wait for weights that come after that step, and would otherwise keep it from its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rhymed.core.messages import EVAL, SampleId
from rhymed.core.steps import is_evaluation
from rhymed_broker.ledger.actions import Act, Close
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.scheduler.policy import load
from rhymed_broker.states import UNWRITTEN, Sample


class Acting:
    def __init__(self, samples: Samples, workers: Workers) -> None:
        self._samples, self._workers, self._hosts = samples, workers, workers.hosts
        self._resets = 0
        self._back: dict[str, dict[Sample, None]] = {}  # host -> what may wait for it

    def assign(self, now: float) -> list[Act | Close]:
        """As many as workers have room for."""
        if not self._samples.rules.environment:
            return []
        actions = self._end() + self._claim() + self._sort()
        free = self._workers.free["environment"]
        if not (free and self._samples.queues["turned"]):
            return actions
        room = {name: worker.slots - load(worker) for name, worker in free.items()}
        placed: dict[str, list[Sample]] = {}
        for name in free:
            placed[name] = self._take_back(name, room[name])
            room[name] -= len(placed[name])
        for sample in self._homeless():
            able = {
                name: slots for name, slots in room.items() if not self._is_second_suspect(sample, name, placed[name])
            }
            name = self._roomiest(sample, able) if able else ""
            if not name and len(able) == len(room):
                break
            if not name:
                continue
            room[name] -= 1
            placed[name].append(sample)
            actions += self._moved(sample.id)
            self._hosts.put(sample.id, name)
        return actions + [self._act(name, samples, now) for name, samples in placed.items() if samples]

    def _sort(self) -> list[Act | Close]:
        """Which of those that were turned since the last call wait for whom. A worker that gave one back, or was too
        slow, does not have it any more."""
        actions: list[Act | Close] = []
        for gone in self._back.keys() - self._workers.by_name.keys():
            del self._back[gone]
        turned, self._samples.turned = self._samples.turned, []
        for sample in turned:
            if sample.story[-1][1] == "returned":
                actions += self._moved(sample.id)
            elif host := self._hosts.of(sample.id):
                self._back.setdefault(host, {})[sample] = None
        return actions

    def _take_back(self, name: str, room: int) -> list[Sample]:
        """At most so many samples that wait for this worker, which has their environments."""
        back, taken, past = self._back.get(name, {}), list[Sample](), list[Sample]()
        for sample in back if room > 0 else ():
            if sample.state != "turned" or self._hosts.of(sample.id) != name:
                past.append(sample)
            elif not self._is_second_suspect(sample, name, taken):
                taken.append(sample)
                if len(taken) == room:
                    break
        for sample in (*past, *taken):
            del back[sample]
        return taken

    def _is_second_suspect(self, sample: Sample, name: str, taken: Iterable[Sample] = ()) -> bool:
        """If a worker dies with one suspect, it is clear which sample is the cause."""
        suspects = self._samples.suspects
        if sample not in suspects:
            return False
        return any(one in suspects for one in (*self._workers.by_name[name].held.values(), *taken))

    def _homeless(self) -> Iterator[Sample]:
        """Samples that wait for an environment worker and have none that they must wait for."""
        for step in sorted(self._samples.open_steps, key=_rank):
            for group in self._samples.open_steps[step].unassigned["turned"].values():
                for sample in group:
                    host = self._workers.by_name.get(self._hosts.of(sample.id))
                    if host is None or host.drained:
                        yield sample

    def _roomiest(self, sample: Sample, room: dict[str, int]) -> str:
        """The worker that opens it, one that has not failed on it if there is one; empty: none has room."""
        left = {name: min(slots, self._left(name)) for name, slots in room.items()}
        best = max(left, key=lambda name: (left[name] > 0, name not in sample.failed_on, left[name]))
        if left[best] > 0:
            return best
        urgent = (name for name, slots in room.items() if slots > 0 and self._may_exceed(sample.id, name))
        return next(urgent, "")

    def _left(self, name: str) -> int:
        """How many more samples it may open."""
        most = self._workers.by_name[name].join.sessions
        return most - self._hosts.count(name) if most else self._workers.by_name[name].slots

    def _may_exceed(self, id: SampleId, name: str) -> bool:
        """Whether fewer than `sessions` of what it has open is of the sample's step, or of steps before it."""
        before = sum(_rank(own.step) <= _rank(id.step) for own in self._hosts.at(name))
        return before < self._workers.by_name[name].join.sessions

    def _end(self) -> list[Act | Close]:
        """Samples that need no environment any more. Whoever completes one has closed it."""
        closed: dict[str, list[SampleId]] = {}
        ended, self._samples.ended = self._samples.ended, []
        for sample in ended:
            if (name := self._hosts.remove(sample.id)) and sample.state in ("dropped", "filtered"):
                closed.setdefault(name, []).append(sample.id)
        return [Close(name, ids) for name, ids in closed.items()]

    def _claim(self) -> list[Act | Close]:
        """What workers had open when they joined, or before samples were rolled back."""
        actions: list[Act | Close] = []
        if self._resets != self._samples.resets:
            self._resets, self._back = self._samples.resets, {}
            for worker in self._workers.of_role("environment"):
                worker.opened = [*worker.opened, *self._hosts.forget(worker.name)]
        for worker in self._workers.of_role("environment"):
            if worker.opened:
                claimed, worker.opened = worker.opened, []
                lost = [id for id in claimed if not self._keeps(worker, id)]
                actions += [Close(worker.name, lost)] if lost else []
        return actions

    def _keeps(self, worker: Worker, id: SampleId) -> bool:
        sample, host = self._samples.get(id), self._hosts.of(id)
        if sample is None or sample.state not in UNWRITTEN or host not in ("", worker.name):
            return False
        if sample.state == "acting" and sample.worker != worker.name:
            return False
        self._hosts.put(id, worker.name)
        self._back.setdefault(worker.name, {})[sample] = None
        return True

    def _moved(self, id: SampleId) -> list[Act | Close]:
        host = self._hosts.remove(id)
        return [Close(host, [id])] if host else []

    def _act(self, name: str, samples: list[Sample], now: float) -> Act:
        self._samples.move_all(samples, "assigned", now, name)
        self._workers.hold(self._workers.by_name[name], samples, now)
        return Act(name, [sample.id for sample in samples])


def _rank(step: int) -> int:
    """Evaluations come before the steps: the weights of those that follow may wait for them."""
    return step - 2 * EVAL if is_evaluation(step) else step
