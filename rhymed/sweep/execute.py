"""Runs the jobs of a sweep: one child `rhymed run` per place, until all are done or the sweep is interrupted.

Owns the children and their threads. A run that fails does not end the others. When this process dies, its runs stop
by themselves, and the next call of the command continues them.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from rhymed import atomic
from rhymed.api.child import Child, Outcome
from rhymed.errors import ConfigError, RhymedError
from rhymed.launch.events import AnyEvent
from rhymed.sweep.places import Places
from rhymed.sweep.plan import Job, Sweep

SETTINGS = "settings"  # folder of the runs' configurations, in the sweep's
LOOK_S = 1.0


class View(Protocol):
    """Called by the main thread alone."""

    def started(self, job: Job) -> None: ...
    def heard(self, job: Job, event: AnyEvent) -> None: ...
    def ended(self, job: Job, outcome: Outcome) -> None: ...
    def tick(self) -> None:
        """About once a second."""

    def stopping(self, runs: int) -> None: ...


@dataclass
class Executor:
    sweep: Sweep
    places: Places
    view: View
    failed: list[Job] = field(default_factory=list)
    interrupted: bool = False
    _children: dict[str, Child] = field(default_factory=dict)
    _events: queue.SimpleQueue[tuple[Job, Mapping[str, str], AnyEvent | Outcome]] = field(
        default_factory=queue.SimpleQueue
    )
    _over: Event = field(default_factory=Event)

    def run(self, jobs: Sequence[Job]) -> None:
        """Blocking, on the main thread. Ctrl-C asks the runs to stop, and waits for them."""
        waiting, free = deque(jobs), list(self.places.environments)
        while self._children or (waiting and not self.interrupted):
            try:
                while waiting and free and not self.interrupted:
                    self._start(waiting.popleft(), free.pop(0))
                if (place := self._next()) is not None:
                    free.append(place)
            except KeyboardInterrupt:
                self._stop()

    def _start(self, job: Job, place: Mapping[str, str]) -> None:
        self.view.started(job)
        child = self._children[job.name] = Child(_arguments(job, self.sweep.folder), place)
        Thread(target=self._follow, args=(job, place, child), name=job.name, daemon=True).start()

    def _follow(self, job: Job, place: Mapping[str, str], child: Child) -> None:
        """In its own thread."""
        try:
            outcome = child.follow(_Heard(self, job, place))
        except BaseException as error:
            outcome = Outcome(error=RhymedError(f"{type(error).__name__}: {error}"))
        self._events.put((job, place, outcome))

    def _next(self) -> Mapping[str, str] | None:
        """Handles one event, or a second without one. The place of a run that has ended."""
        try:
            job, place, event = self._events.get(timeout=LOOK_S)
        except queue.Empty:
            self.view.tick()
            return None
        if not isinstance(event, Outcome):
            self.view.heard(job, event)
            return None
        self._judge(job, event)
        return place

    def _judge(self, job: Job, outcome: Outcome) -> None:
        del self._children[job.name]
        if outcome.error is not None or (outcome.interrupted and not self.interrupted):
            self.failed.append(job)
        self.sweep.refused(job, str(outcome.error) if outcome.error is not None and not job.exists else "")
        self.view.ended(job, outcome)

    def _stop(self) -> None:
        if not self.interrupted:
            self.view.stopping(len(self._children))
        self.interrupted = True
        for child in self._children.values():
            child.interrupt()

    def hear(self, job: Job, place: Mapping[str, str], event: AnyEvent) -> None:
        self._events.put((job, place, event))


@dataclass
class _Heard:
    """A `Display` that hands events to the main thread."""

    executor: Executor
    job: Job
    place: Mapping[str, str]

    def handle(self, event: AnyEvent) -> None:
        self.executor.hear(self.job, self.place, event)

    def close(self) -> None:
        pass


def _arguments(job: Job, folder: Path) -> list[str]:
    if job.exists:
        return ["run", str(job.folder), "--resume"]
    file = folder / SETTINGS / f"{job.name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(file, job.config.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    return ["run", str(file)]
