"""What an operator has paused or drained. Pure, part of the ledger.

Invariants: while the run is paused, no sample is assigned and no step goes to the trainer. A drained worker is
assigned nothing, and is asked to release its samples until it has none; this is no failure of theirs. A drained
reward worker finishes what it scores: that is short and cannot move. Both last until the broker restarts.
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
        self._drained: set[str] = set()  # names: a worker that joins again is still drained

    def pause(self, paused: bool, now: float) -> None:
        if paused and not self.paused:
            self.paused_at = now
        self.paused = paused

    def drain(self, name: str, drained: bool) -> None:
        """Raises `SteeringError`. Idempotent."""
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

    def release(self, now: float) -> list[Release]:
        """Requests to the drained workers for their samples."""
        asked = []
        for name in sorted(self._drained & self._workers.by_name.keys()):
            worker = self._workers.by_name[name]
            held = worker.held.values() if worker.role == "rollout" else ()
            movable = [sample for sample in held if self._may_move(sample.id.step, worker)]
            late = [sample for sample in movable if not sample.released or now - sample.released >= RELEASE_S]
            for sample in late:
                sample.released, sample.goal = now, ""
            if late:
                asked.append(Release(name, [sample.id for sample in late]))
        return asked

    def _may_move(self, step: int, worker: Worker) -> bool:
        """An evaluation is sampled from one version alone: it stays on the last worker that has it."""
        if step < EVAL:
            return True
        others = self._workers.of_role("rollout")
        return any(not other.drained and other.version == worker.version for other in others)

    def _here(self) -> str:
        names = sorted(worker.name for worker in self._workers if worker.role != "trainer")
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"here are {', '.join(names[:NAMED])}{more}" if names else "no worker is here"
