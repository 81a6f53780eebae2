"""What `rhymed run` shows: a live screen on a terminal, otherwise one line per step.

Owns the terminal and what was printed already. The live screen is `rhymed.show.top.screen.picture`, the plain lines
are here. A new snapshot replaces the last one.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.text import Text

from rhymed.core.config import Config
from rhymed.core.console import Terminal
from rhymed.core.messages import Queues, Role, WorkerRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.metrics import unlearned
from rhymed.core.run.timeline import Progress, Times
from rhymed.core.text import STEP_COLUMNS, age, clock, evaluation_lines
from rhymed.show.dashboard import listen
from rhymed.show.dashboard.auth import TOKEN_FILE
from rhymed.show.top.screen import picture
from rhymed.show.top.state import Absent, Connection, Shown

STARTING_S = 30.0  # between plain lines while a process is starting
SILENT_S = 5.0  # of a broker that has answered before
MAX_NAMED = 3  # workers on one line
WIDE = 8  # cells of a column of a step's line, if its heading is not longer
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
        self._started = time.monotonic()
        self._shown = Shown(connection=Connection("waiting", self._started))
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
        self._unlearned = ""
        self._folder, self._start_time, self._dashboard_shown = layout.folder, time.time(), not config.net.http
        self._print(f"run      {layout.folder}")
        acting = f"{config.environment.workers} environment, " if config.environment.active else ""
        self._workers = f"{config.rollout.workers} rollout, {acting}{config.reward.workers} reward"

    def __enter__(self) -> Self:
        self._print(f"starting store, broker, trainer, {self._workers}")
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
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
            self._live.update(Group(*self._picture(queues, absent, now)))
        elif queues is not None and not self._steps_seen:
            self._show_phases(queues, absent)

    def _picture(self, queues: Queues | None, absent: list[Absent], now: float) -> list[Text]:
        shown = self._shown
        shown.absent, shown.notices = absent, list(self._events)
        if queues is not None:
            shown.answered(queues, now, Times(self._elapsed(), self._times(queues).eta_s))
        else:
            shown.unanswered(now)
        return picture(shown, self._console.width, self._console.height - 1, now)

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
        self._print(line(queues, self._elapsed(), self._times(queues).eta_s))
        self._watch_mismatch(queues.metrics.get("mismatch_kl/mean", 0.0))
        self._watch_gradient(queues)

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

    def _watch_gradient(self, queues: Queues) -> None:
        """Warn at the first of several steps in which the policy learns nothing."""
        why = unlearned(queues.metrics)
        if why and why != self._unlearned:
            self.report(f"WARNING step {queues.step}: {why}")
        self._unlearned = why

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


class Starting:
    """Remembers since when each process that the configuration names for this machine has been absent."""

    def __init__(self, config: Config, now: float) -> None:
        counts: list[tuple[Role, int]] = [("rollout", config.rollout.workers), ("reward", config.reward.workers)]
        if config.environment.active:
            counts.append(("environment", config.environment.workers))
        self._roles: dict[str, Role] = {f"{role}-{i}": role for role, count in counts for i in range(count)}
        self._roles["trainer"] = "trainer"
        self._since = dict.fromkeys(self._roles, now)

    def update(self, queues: Queues | None, now: float) -> list[Absent]:
        """None, while the broker does not answer, changes nothing but the times."""
        if queues is not None:
            here = {row.worker for row in queues.workers}
            absent = [] if queues.finished else [name for name in self._roles if name not in here]
            self._since = {name: self._since.get(name, now) for name in absent}
        return [Absent(self._roles[name], name, now - since) for name, since in self._since.items()]


def heading() -> str:
    """The first line of the plain output."""
    return "step   " + "".join(f"{name:>{_width(name)}}" for _, name, _ in STEP_COLUMNS)[1:] + "    time   left"


def line(queues: Queues, elapsed_s: float, eta_s: float | None = None) -> str:
    """One trained step, for people and `grep`."""
    cells = [
        f"{form.format(queues.metrics[key]) if key in queues.metrics else '-':>{_width(name)}}"
        for key, name, form in STEP_COLUMNS
    ]
    left = "-" if eta_s is None else age(eta_s)
    return f"{f'{queues.step}/{queues.steps}':<7}" + "".join(cells)[1:] + f"{clock(elapsed_s):>8}{left:>7}"


def _width(name: str) -> int:
    return max(WIDE, len(name) + 1)


def phases(rows: Sequence[WorkerRow], absent: Sequence[Absent]) -> str:
    """The phase of each worker; of many workers, how many are in each phase."""
    states = [(row.role, row.worker, row.phase or "ready") for row in rows]
    if len(rows) + len(absent) <= MAX_NAMED:
        states += [(one.role, one.name, one.phase) for one in absent]
        return ", ".join(f"{name}: {phase}" for _, name, phase in states)
    counts = Counter((role, phase) for role, _, phase in states)
    counts.update((one.role, "start") for one in absent)
    return ", ".join(f"{count} {role}: {phase}" for (role, phase), count in counts.items())
