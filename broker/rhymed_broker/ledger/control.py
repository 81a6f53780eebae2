"""What a person has told the run: to hand out nothing, or nothing to some workers. Pure, part of the ledger.

Invariants: while the run is paused no sample is given to a worker, and no step to the trainer; a drained worker is
given nothing, and what it writes it is asked to hand over, until it has nothing. No sample fails by it. Both count
until the broker starts again. What a reward worker scores it finishes: that is short, and cannot be handed over.
"""

from __future__ import annotations

from rhymed.errors import SteeringError
from rhymed.messages import EVAL
from rhymed_broker.ledger.actions import Release
from rhymed_broker.ledger.dispatch import RELEASE_S
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers

NAMED = 8  # workers in an error


class Control:
    def __init__(self, samples: Samples, workers: Workers) -> None:
        self.paused = False
        self.paused_at = 0.0
        self._samples, self._workers = samples, workers
        self._drained: set[str] = set()  # names: who comes back is still drained

    def pause(self, paused: bool, now: float) -> None:
        if paused and not self.paused:
            self.paused_at = now
        self.paused = paused

    def drain(self, name: str, drained: bool) -> None:
        """Raises `SteeringError`. Saying it twice does no harm."""
        worker = self._workers.by_name.get(name)
        if worker is None and not (name in self._drained and not drained):
            raise SteeringError(f"no worker is called {name!r}; {self._here()}")
        if worker is not None and worker.role == "trainer":
            raise SteeringError(f"{name} is the trainer, and there is no other: pause the run instead")
        self._drained = self._drained | {name} if drained else self._drained - {name}
        if worker is not None and worker.drained != drained:
            self._workers.drain(worker, drained)

    def joined(self, worker: Worker) -> None:
        """It may have been drained before it went away."""
        if worker.name in self._drained:
            self._workers.drain(worker, True)

    def recall(self, now: float) -> list[Release]:
        """What drained workers are to hand over now."""
        asked = []
        for name in sorted(self._drained & self._workers.by_name.keys()):
            worker = self._workers.by_name[name]
            held = [
                sample
                for sample in worker.held.values()
                if worker.role == "rollout" and self._may_move(sample.id.step, worker)
            ]
            late = [sample for sample in held if not sample.released or now - sample.released >= RELEASE_S]
            for sample in late:
                sample.released, sample.goal = now, ""
            if late:
                asked.append(Release(name, [sample.id for sample in late]))
        return asked

    def _may_move(self, step: int, worker: Worker) -> bool:
        """An evaluation is sampled from one version alone: not away from the only worker that has it."""
        if step < EVAL:
            return True
        crew = self._workers.by_name.values()
        return any(one.role == "rollout" and not one.drained and one.version == worker.version for one in crew)

    def _here(self) -> str:
        names = sorted(worker.name for worker in self._workers.by_name.values() if worker.role != "trainer")
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"here are {', '.join(names[:NAMED])}{more}" if names else "no worker is here"
