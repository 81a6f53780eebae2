"""What `rhymed run` shows: a live screen on a terminal, otherwise one line per step.

Owns the terminal and what was printed already; `live` has the texts. A new snapshot replaces the last one.
"""

from __future__ import annotations

import re
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.live import Live

from rhymed.config import Config
from rhymed.console import Terminal
from rhymed.dashboard import listen
from rhymed.dashboard.auth import TOKEN_FILE
from rhymed.launch.live import Absent, Starting, heading, line, phases, render
from rhymed.messages import Queues
from rhymed.printable import line as line_of
from rhymed.run.layout import RunLayout
from rhymed.run.progress import Progress, Times
from rhymed.text import clock, evaluation_lines

STARTING_S = 30.0  # between plain lines while a process is starting
SILENT_S = 5.0  # of a broker that has answered before
LONGEST_EVENT = 4000  # characters
LONGEST_REASON = 200  # of an error that is shown whole at the end
REPEAT_S = 60.0  # until a trouble that comes and goes is printed again
NUMBERS = re.compile(r"(?<![\w/-])[0-9][0-9.,]*(?![\w-])")
"""Numbers that keep changing in an otherwise equal sentence."""


class Screen:
    def __init__(self, config: Config, layout: RunLayout, *, plain: bool, console: Terminal | None = None) -> None:
        self._console = console or Terminal()
        self._live = None if plain else Live(console=self._console, refresh_per_second=4, transient=True)
        self._events: deque[str] = deque(maxlen=4)
        self._rewards: list[float] = []
        self._started = time.monotonic()
        self._shown_step = 0
        self._shown_val = -1.0
        self._checkpoint = config.run.name if config.trainer.steps == 0 else ""  # that is evaluated
        self._phase = ""
        self._phase_at = 0.0  # when it was printed
        self._starting = Starting(config, self._started)
        self._answered: float | None = None  # when the broker last did
        self._progress = Progress()
        self._troubles: set[str] = set()
        self._silent_until: dict[str, float] = {}  # by trouble
        self._waiting = False  # a trouble was printed, and not yet that all are over
        self._steps_seen = False
        self._mismatch_warn = config.trainer.mismatch_warn
        self._mismatched = False
        self._folder, self._start_time, self._dashboard_shown = layout.folder, time.time(), not config.net.http
        self._print(f"run      {layout.folder}")
        acting = f"{config.environment.workers} environment, " if config.environment.active else ""
        self._workers = f"{config.rollout.workers} rollout, {acting}{config.reward.workers} reward"

    def __enter__(self) -> Self:
        self._print(f"starting store, broker, trainer, {self._workers}")
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def report(self, event: str) -> None:
        event = line_of(event, LONGEST_EVENT)
        self._events.append(f"{clock(self._elapsed())} {event}")
        if not self._live:
            self._print(f"-- {event}")

    def show(self, queues: Queues | None) -> None:
        if not self._dashboard_shown:
            self._show_dashboard()
        now = time.monotonic()
        if queues is not None:
            self._answered = now
            self._step(queues)
            self._evaluation(queues)
            self._trouble(queues.troubles)
        elif (waited_s := now - (self._answered or self._started)) > (SILENT_S if self._answered else STARTING_S):
            self._trouble([f"the broker has not answered for {waited_s:.0f} s"])
        absent = self._starting.update(queues, now)
        if self._live:
            left = self._times(queues).left if queues is not None else ""
            silent_s = None if self._answered is None else now - self._answered
            events = list(self._events)
            self._live.update(
                render(queues, self._rewards, events, self._elapsed(), left=left, silent_s=silent_s, absent=absent)
            )
        elif queues is not None and not self._steps_seen:
            self._show_phases(queues, absent)

    def closing(self, finished: bool, why: str = "") -> None:
        """The run is over; its processes are being stopped, which may take half a minute."""
        reason = line_of(why.partition("\n")[0], LONGEST_REASON)
        self._print(("finished; " if finished else "") + "stopping all processes" + (f": {reason}" if reason else ""))

    def failed(self, why: str) -> None:
        self._print(f"run failed: {why}")

    def _step(self, queues: Queues) -> None:
        if queues.step <= self._shown_step or not queues.metrics:
            return
        if not self._steps_seen:
            self._steps_seen = True
            self._print(heading())
        self._shown_step = queues.step
        self._rewards.append(queues.metrics.get("reward/mean", 0.0))
        self._print(line(queues, self._elapsed(), self._times(queues).eta_s))
        self._watch_mismatch(queues.metrics.get("mismatch_kl/mean", 0.0))

    def _show_dashboard(self) -> None:
        if address := listen.read(self._folder, self._start_time):
            self._dashboard_shown = True
            entry = "" if address.is_local else f"?token=…   (the token is in {self._folder / TOKEN_FILE})"
            self._print(f"watch    {address.url}{entry}")

    def _evaluation(self, queues: Queues) -> None:
        version = queues.val.get("val/version", self._shown_val)
        if version > self._shown_val:
            self._shown_val = version
            for text in evaluation_lines(queues.val):
                self._print(f"{self._checkpoint or f'eval v{version:.0f}'}   {text}")

    def _watch_mismatch(self, mean: float) -> None:
        """Warn when it starts: the engine may have stale or wrong weights."""
        if mean > self._mismatch_warn and not self._mismatched:
            self.report(
                f"WARNING mismatch_kl/mean {mean:.4f} is above {self._mismatch_warn:g}: the engine does not sample"
                " from the trainer's policy"
            )
        self._mismatched = mean > self._mismatch_warn

    def _trouble(self, troubles: list[str]) -> None:
        """As plain lines: each when it starts, and when all are over. The live screen shows them as they are."""
        if self._live:
            return
        now = {NUMBERS.sub("", trouble): trouble for trouble in troubles}
        for key, trouble in now.items():
            if key not in self._troubles and self._elapsed() >= self._silent_until.get(key, 0.0):
                self._silent_until[key] = self._elapsed() + REPEAT_S
                self._waiting = True
                self.report(f"waits: {trouble}")
        if self._waiting and not now:
            self._waiting = False
            self.report("continues")
        self._troubles = set(now)

    def _show_phases(self, queues: Queues, absent: list[Absent]) -> None:
        """Until the first step is trained, print the phases of the processes whenever they change, and sometimes
        while one is starting."""
        shown = ("rollout", "trainer")
        text = phases(
            [row for row in queues.workers if row.role in shown], [one for one in absent if one.role in shown]
        )
        kind = NUMBERS.sub("", text.replace("/", " "))
        is_late = absent and self._elapsed() - self._phase_at >= STARTING_S
        if text and (kind != self._phase or is_late):
            self._phase, self._phase_at = kind, self._elapsed()
            self._print(f"{clock(self._elapsed()):>6}   {text}")

    def _times(self, queues: Queues) -> Times:
        self._progress.read_end(self._folder)  # on the event loop
        return self._progress.times(None if queues.paused else queues.steps, time.time())

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
