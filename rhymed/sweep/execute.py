"""Runs the jobs of a sweep: one child `rhymed run` per place, until all are done or the sweep is interrupted.

Owns the children and their threads. A run that fails, or cannot be started, does not end the others. Ctrl-C is an
event like theirs, so it comes between two of them and never within. When this process dies, its runs stop by
themselves, and the next call of the command continues them.
"""

from __future__ import annotations

import queue
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Protocol

from rhymed.api.child import Child, Outcome
from rhymed.errors import ConfigError, RhymedError
from rhymed.launch.events import AnyEvent
from rhymed.run.redact import write_config
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
    _announced: bool = False
    _events: queue.SimpleQueue[tuple[Job, Mapping[str, str], AnyEvent | Outcome] | None] = field(
        default_factory=queue.SimpleQueue
    )
    """None: an interrupt."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Blocking, on the main thread. SIGINT and SIGTERM ask the runs to stop, and their end is awaited."""
        waiting, free = deque(jobs), list(self.places.environments)
        with self._interruptible():
            while self._children or (waiting and not self.interrupted):
                while waiting and free and not self.interrupted:
                    if self._start(waiting.popleft(), free[0]):
                        free.pop(0)
                if self._children and (place := self._next()) is not None:
                    free.append(place)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        """Of a signal: between any two instructions."""
        self.interrupted = True
        self._events.put(None)

    def _start(self, job: Job, place: Mapping[str, str]) -> bool:
        """False: it could not be started."""
        self.view.started(job)
        try:
            child = Child(_arguments(job, self.sweep.folder), place)
        except (RhymedError, OSError) as error:
            self._judge(job, Outcome(error=error if isinstance(error, RhymedError) else RhymedError(str(error))))
            return False
        self._children[job.name] = child
        Thread(target=self._follow, args=(job, place, child), name=job.name, daemon=True).start()
        return True

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
            found = self._events.get(timeout=LOOK_S)
        except queue.Empty:
            self.view.tick()
            return None
        if found is None:
            self._stop()
            return None
        job, place, event = found
        if not isinstance(event, Outcome):
            self.view.heard(job, event)
            return None
        self._judge(job, event)
        return place

    def _judge(self, job: Job, outcome: Outcome) -> None:
        self._children.pop(job.name, None)
        if outcome.error is not None or (outcome.interrupted and not self.interrupted):
            self.failed.append(job)
        self.sweep.refused(job, str(outcome.error) if outcome.error is not None and not job.exists else "")
        self.view.ended(job, outcome)

    def _stop(self) -> None:
        if not self._announced:
            self.view.stopping(len(self._children))
        self._announced = True
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

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


def _arguments(job: Job, folder: Path) -> list[str]:
    if job.exists:
        return ["run", str(job.folder), "--resume"]
    file = folder / SETTINGS / f"{job.name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_config(file, job.config)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    return ["run", str(file)]
