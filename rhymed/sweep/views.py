"""What is shown while a sweep runs: the table of its runs in place on a terminal, else one line per event."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.api.child import Outcome
from rhymed.launch.events import AnyEvent, Notice, Snapshot
from rhymed.messages import Queues
from rhymed.output import show
from rhymed.several.listing import Lister
from rhymed.several.table import table
from rhymed.sweep.plan import Job, Sweep
from rhymed.text import counted, step_line, step_name

if TYPE_CHECKING:
    from rich.live import Live

REDRAW_S = 2.0


class Lines:
    """For files and pipes; the base of the other."""

    def __init__(self, sweep: Sweep) -> None:
        self._total, self._place = len(sweep.jobs), {job.name: n for n, job in enumerate(sweep.jobs, 1)}
        self._steps: dict[str, int] = {}
        self.queues: dict[Path, Queues | None] = {}

    def started(self, job: Job) -> None:
        how = "continues" if job.exists else "starts"
        self.line(f"[{self._place[job.name]}/{self._total}] {job.name} {how}")

    def heard(self, job: Job, event: AnyEvent) -> None:
        if isinstance(event, Snapshot) and event.queues is not None:
            self.queues[job.folder] = event.queues
            self._step(job, event.queues)
        elif isinstance(event, Notice):
            self.line(f"{job.name}: {event.text}")

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.queues.pop(job.folder, None)
        if outcome.error is not None:
            self.line(f"{job.name} failed: {str(outcome.error).splitlines()[0]}")
        else:
            self.line(f"{job.name} {'interrupted' if outcome.interrupted else 'finished'}")

    def tick(self) -> None:
        pass

    def stopping(self, runs: int) -> None:
        self.line(f"ending {counted(runs, 'run')}; their samples are kept")

    def line(self, text: str) -> None:
        show(text, flush=True)

    def close(self) -> None:
        pass

    def _step(self, job: Job, queues: Queues) -> None:
        if queues.metrics and queues.step > self._steps.get(job.name, 0):
            self._steps[job.name] = queues.step
            self.step(f"{job.name}: {step_name(queues.step - 1)}/{queues.steps}   {step_line(queues.metrics)}")

    def step(self, text: str) -> None:
        self.line(text)


class Screen(Lines):
    def __init__(self, sweep: Sweep) -> None:
        super().__init__(sweep)
        from rich.live import Live

        from rhymed.console import Terminal

        self._lister, self._drawn = Lister(sweep.folder), 0.0
        self._live: Live = Live(console=Terminal(highlight=False), auto_refresh=False, transient=True)
        self._live.start()

    def heard(self, job: Job, event: AnyEvent) -> None:
        super().heard(job, event)
        self.tick()

    def tick(self) -> None:
        if (now := time.monotonic()) >= self._drawn + REDRAW_S:
            self._drawn = now
            width = self._live.console.width
            self._live.update(table(self._lister.read(self.queues), time.time(), width), refresh=True)

    def line(self, text: str) -> None:
        self._live.console.print(text, markup=False, soft_wrap=True)

    def step(self, text: str) -> None:
        pass  # the table has it

    def close(self) -> None:
        self._live.stop()


def view_of(sweep: Sweep, *, plain: bool) -> Any:
    return Lines(sweep) if plain or not (sys.stdout and sys.stdout.isatty()) else Screen(sweep)
