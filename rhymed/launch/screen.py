"""What `rhymed run` shows: a live screen on a terminal, otherwise one line per step.

`render` and `line` are pure; `Screen` owns the terminal. A new snapshot replaces the last one.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rhymed.config import Config
from rhymed.dashboard import listen
from rhymed.dashboard.auth import TOKEN_FILE
from rhymed.messages import Queues, StepRow, WorkerRow
from rhymed.run.layout import RunLayout
from rhymed.style import COLOURS, ROLES, sparkline
from rhymed.text import STEP_COLUMNS, clock, evaluation_lines, step_name

BAR_CELLS = 48
MAX_NAMED = 3  # workers on one line
REPEAT_S = 60.0  # until a trouble that comes and goes is printed again
NUMBERS = re.compile(r"(?<![\w/-])[0-9][0-9.,]*(?![\w-])")
"""Numbers that keep changing in an otherwise equal sentence."""

DRAFTED = ("rollout/spec_accept_length", "tok/fwd", "{:.2f}")
"""On the live screen, if the engine drafts; a step's line has no room for it."""


def heading() -> str:
    """The first line of the plain output."""
    return "step   " + "".join(f"{name:>9}" for _, name, _ in STEP_COLUMNS)[1:] + "    time"


def line(queues: Queues, elapsed_s: float) -> str:
    """One trained step, for people and `grep`."""
    cells = [form.format(queues.metrics[key]) if key in queues.metrics else "-" for key, _, form in STEP_COLUMNS]
    step = f"{queues.step}/{queues.steps}"
    return f"{step:<7}" + "".join(f"{cell:>9}" for cell in cells)[1:] + f"{clock(elapsed_s):>8}"


def render(queues: Queues | None, rewards: list[float], events: list[str], elapsed_s: float) -> RenderableType:
    """The live screen. `queues` is None while the broker does not answer."""
    parts: list[RenderableType] = []
    if queues is None:
        parts.append(Text(f"starting … {elapsed_s:.0f} s", style="bold"))
    else:
        title = f"step {queues.step}/{queues.steps}   policy v{queues.version}   {clock(elapsed_s)}"
        parts.append(Text(f"rhymed {queues.run}   {title}", style="bold"))
        parts.extend(_step(row) for row in queues.open_steps[:2])
        parts.append(_workers(queues.workers))
        parts.append(Text(_metrics(queues)))
        parts.extend(Text(f"eval   {text}") for text in evaluation_lines(queues.val))
    if rewards:
        parts.append(Text(f"reward  {sparkline(rewards[-60:])}  {rewards[-1]:.3f}"))
    if queues is not None:
        parts.extend(Text(f"waits  {trouble}", style="bold red") for trouble in queues.troubles)
    parts.extend(Text(event, style="yellow") for event in events)
    return Group(*parts)


def _metrics(queues: Queues) -> str:
    values = [
        (name, form.format(queues.metrics[key]))
        for key, name, form in (*STEP_COLUMNS, DRAFTED)
        if key in queues.metrics
    ]
    return "last step   " + "   ".join(f"{name} {value}" for name, value in values) if values else ""


def _step(row: StepRow) -> Text:
    """A bar whose coloured parts are the states of the step's samples."""
    total = max(1, sum(row.states.values()))
    bar = Text(f"{step_name(row.step):<9} ")
    left = BAR_CELLS
    for state, colour in COLOURS.items():
        cells = round(BAR_CELLS * row.states.get(state, 0) / total)
        bar.append("█" * min(left, cells), style=colour)
        left -= min(left, cells)
    bar.append("·" * left + f" {row.groups_ready}/{row.groups} groups  ", style="grey50")
    for state, count in row.states.items():
        if count:
            bar.append(f"{state} {count} ", style=COLOURS.get(state, ""))
    return bar


def _workers(rows: list[WorkerRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey50")
    for name in ("process", "does", "holds", "version", "tokens/s", "silent"):
        table.add_column(name, justify="left" if name in ("process", "does") else "right")
    for row in sorted(rows, key=lambda row: (row.role, row.worker)):
        speed = row.stats.get("rollout/tokens_per_s")
        table.add_row(
            f"{ROLES[row.role]} {row.worker}",
            row.phase or "-",
            str(row.held),
            f"v{row.version}" if row.version >= 0 else "-",
            f"{speed:.0f}" if speed is not None else "",
            f"{row.silent_s:.0f} s",
        )
    return table


def starting(rows: list[WorkerRow]) -> str:
    """The phase of each worker; of many workers, how many are in each phase."""
    if len(rows) <= MAX_NAMED:
        return ", ".join(f"{row.worker}: {row.phase or 'ready'}" for row in rows)
    counts = Counter((row.role, row.phase or "ready") for row in rows)
    return ", ".join(f"{count} {role}: {phase}" for (role, phase), count in counts.items())


class Screen:
    def __init__(self, config: Config, layout: RunLayout, *, plain: bool, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = None if plain else Live(console=self._console, refresh_per_second=4, transient=True)
        self._events: deque[str] = deque(maxlen=4)
        self._rewards: list[float] = []
        self._started = time.monotonic()
        self._shown_step = 0
        self._shown_val = -1.0
        self._checkpoint = config.run.name if config.trainer.steps == 0 else ""  # that is evaluated
        self._phase = ""
        self._troubles: set[str] = set()
        self._silent_until: dict[str, float] = {}  # by trouble
        self._waiting = False  # a trouble was printed, and not yet that all are over
        self._steps_seen = False
        self._mismatch_warn = config.trainer.mismatch_warn
        self._mismatched = False
        self._folder, self._start_time, self._dashboard_shown = layout.folder, time.time(), not config.net.http
        self._print(f"run      {layout.folder}")
        self._workers = f"{config.rollout.workers} rollout, {config.reward.workers} reward"

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
        self._events.append(f"{clock(self._elapsed())} {event}")
        if not self._live:
            self._print(f"-- {event}")

    def show(self, queues: Queues | None) -> None:
        if not self._dashboard_shown:
            self._show_dashboard()
        if queues is not None:
            self._step(queues)
            self._evaluation(queues)
            self._trouble(queues.troubles)
        if self._live:
            self._live.update(render(queues, self._rewards, list(self._events), self._elapsed()))
        elif queues is not None and not self._steps_seen:
            self._starting(queues)

    def closing(self, finished: bool) -> None:
        """The run is over; its processes are being stopped."""
        self._print("finished; stopping all processes" if finished else "stopping all processes")

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
        self._print(line(queues, self._elapsed()))
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

    def _starting(self, queues: Queues) -> None:
        """Until the first step is trained, print the phases of the processes whenever they change."""
        phase = starting([row for row in queues.workers if row.role != "reward"])
        kind = NUMBERS.sub("", phase.replace("/", " "))
        if phase and kind != self._phase:
            self._phase = kind
            self._print(f"{clock(self._elapsed()):>6}   {phase}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
