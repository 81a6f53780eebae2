"""The texts of `rhymed run`'s screen and plain lines. Pure: a snapshot and times in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rhymed.config import Config
from rhymed.messages import Queues, Role, StepRow, WorkerRow
from rhymed.style import COLOURS, GLYPHS, ROLES, bar, sparkline
from rhymed.text import STEP_COLUMNS, age, clock, evaluation_lines, step_name

BAR_CELLS = 48
MAX_NAMED = 3  # workers on one line
LOADS: dict[Role, str] = {
    "rollout": "loads the engine",
    "trainer": "loads the model",
    "environment": "starts",
    "reward": "starts",
}
WIDE = 8  # cells of a column of a step's line, if its heading is not longer

DRAFTED = ("rollout/spec_accept_length", "tok/fwd", "{:.2f}")
"""On the live screen, if the engine drafts; a step's line has no room for it."""


class Absent(NamedTuple):
    """A process that was started and has not joined the run yet."""

    role: Role
    name: str
    seconds: float

    @property
    def phase(self) -> str:
        return f"start ({LOADS[self.role]}, {self.seconds:.0f} s)"


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


def render(
    queues: Queues | None,
    rewards: list[float],
    events: list[str],
    elapsed_s: float,
    *,
    left: str = "",
    silent_s: float | None = None,
    absent: Sequence[Absent] = (),
) -> RenderableType:
    """The live screen. `queues` is None while the broker does not answer; `silent_s`: since its last answer, None:
    it gave none yet; `left`: `about 12 min left`."""
    parts: list[RenderableType] = []
    if queues is None:
        silent = (
            f"starting … {elapsed_s:.0f} s" if silent_s is None else f"no answer from the broker for {silent_s:.0f} s"
        )
        parts.append(Text(silent, style="bold"))
        parts.append(_workers([], absent))
    else:
        parts.append(Text(f"rhymed {queues.run}   {_title(queues, elapsed_s, left)}", style="bold"))
        parts.extend(_step(row) for row in queues.open_steps[:2])
        parts.append(_workers(queues.workers, absent))
        parts.append(Text(_metrics(queues)))
        parts.extend(Text(f"eval   {text}") for text in evaluation_lines(queues.val))
    if rewards:
        parts.append(Text(f"reward  {sparkline(rewards[-60:])}  {rewards[-1]:.3f}"))
    if queues is not None:
        parts.extend(Text(f"waits  {trouble}", style="bold red") for trouble in queues.troubles)
    parts.extend(Text(event, style="yellow") for event in events)
    return Group(*parts)


def _title(queues: Queues, elapsed_s: float, left: str) -> str:
    times = f"{clock(elapsed_s)} elapsed" + (f", {left}" if left else "")
    return f"step {queues.step}/{queues.steps}   policy v{queues.version}   {times}"


def _metrics(queues: Queues) -> str:
    values = [
        (name, form.format(queues.metrics[key]))
        for key, name, form in (*STEP_COLUMNS, DRAFTED)
        if key in queues.metrics
    ]
    return "last step   " + "   ".join(f"{name} {value}" for name, value in values) if values else ""


def _step(row: StepRow) -> Text:
    """A bar whose parts are the states of the step's samples; each has its glyph, for terminals without colours."""
    text = Text(f"{step_name(row.step):<9} ")
    pieces = [(row.states.get(state, 0), glyph, COLOURS[state]) for state, glyph in GLYPHS.items()]
    text.append_text(bar(pieces, BAR_CELLS))
    text.append(f" {row.groups_ready}/{row.groups} groups  ", style="grey50")
    for state, count in row.states.items():
        if count:
            text.append(f"{GLYPHS.get(state, '')} {state} {count}  ", style=COLOURS.get(state, ""))
    return text


def _workers(rows: list[WorkerRow], absent: Sequence[Absent]) -> Table:
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
    for one in sorted(absent):
        table.add_row(f"{ROLES[one.role]} {one.name}", one.phase, style="grey50")
    return table


def phases(rows: Sequence[WorkerRow], absent: Sequence[Absent]) -> str:
    """The phase of each worker; of many workers, how many are in each phase."""
    states = [(row.role, row.worker, row.phase or "ready") for row in rows]
    if len(rows) + len(absent) <= MAX_NAMED:
        states += [(one.role, one.name, one.phase) for one in absent]
        return ", ".join(f"{name}: {phase}" for _, name, phase in states)
    counts = Counter((role, phase) for role, _, phase in states)
    counts.update((one.role, "start") for one in absent)
    return ", ".join(f"{count} {role}: {phase}" for (role, phase), count in counts.items())
