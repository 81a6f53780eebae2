"""The whole screen from a `UiState`: exactly as many lines as the terminal has, none wider than it. Pure.

From the top: the run, its queues, the open steps, groups, staleness, curves, problems, then a table that takes the
rest, and the keys. With little room, the least important blocks are dropped first, down to a few cells.

`paint` is the whole; `glance` is what `rhymed run` shows: the same parts without keys. `help_box` and `question_box`
lie over the whole, and `worker_lines` and `group_lines` stand above the table of one worker or group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from rhymed.core.messages import EVAL, Queues, Usage, WorkerRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.stragglers import RATE, shown_states, starting
from rhymed.core.service.stopwatch import PREFIX, TERMINAL
from rhymed.core.style import COLOURS, ROLES, bar
from rhymed.core.text import STEP_COLUMNS, age, counted, evaluation_lines, size_of, step_name
from rhymed.show.top import steps
from rhymed.show.top.state import LENGTH, REWARD, Question, UiState, utilization
from rhymed.show.top.table import UNKNOWN, count, cut, draw, fill, number, share, spark
from rhymed.show.top.views import Listing, listing
from rhymed.show.top.workers import STYLES, WORKER_COLUMNS, find, worker_entries

TABLE_LINES = 5  # at least
QUEUE_CELLS = 9
WIDE = 100  # columns from which on curves are side by side
DROP_ORDER = ("groups", "curves", "ahead", "detail", "steps", "queues", "trouble")
"""Blocks above the table, in the order in which they are dropped when there is no room."""
QUEUE_DROP_ORDER = (
    "trained",
    "filtered",
    "dropped",
    "training",
    "generated",
    "scoring",
    "scored",
    "acting",
    "turned",
    "waiting",
)

KEYS = (
    ("q", "quit"), ("?", "help"), ("⏎", "open"), ("esc", "back"), ("s", "sort"), ("/", "filter"), ("g", "groups"),
    ("p", "pause"), ("d", "drain"),
)  # fmt: skip


class Frame(NamedTuple):
    lines: list[Text]  # of the terminal
    names: list[str | None]  # per line: the table row that it shows
    page: int  # visible rows of the table


def paint(ui: UiState, width: int, height: int, now: float) -> Frame:
    """`now`: on the clock of `ui.connection.since`, seconds. Stores in `ui` which row is at the top."""
    head = [title(ui, width, now)]
    foot = [footer(ui, width)] if height > 2 else []
    room = height - len(head) - len(foot)
    above = _above(ui, width, height, room)
    table = listing(ui)
    below = _below(ui, table, width, room - len(above))
    middle = _table(ui, table, width, max(0, room - len(above) - len(below)))
    lines = [*head, *above, *middle.lines, *below, *foot][:height]
    names = [*[None] * (len(head) + len(above)), *middle.names, *[None] * (len(below) + len(foot))][:height]
    for line in _stale(ui, lines[1 : len(lines) - len(foot)], [*middle.lines, *below]):
        line.stylize("dim")
    box = question_box(ui.question) if ui.question else help_box() if ui.help_shown else None
    if box is not None:
        lines = over(lines, box, width)
    for line in lines:
        line.truncate(width)
    return Frame(lines, names, middle.page)


GLANCE_ORDER = ("ahead", "curves", "steps", "evaluation", "notices")
"""Parts of `glance`, in the order in which they are dropped when there is no room."""

DRAFTED = ("rollout/spec_accept_length", "tok/fwd", "{:.2f}")
"""Of the last step, if the engine drafts; a step's plain line has no room for it."""


def glance(ui: UiState, width: int, height: int, now: float) -> list[Text]:
    """The run in as few lines as it needs, at most `height`, for a terminal that scrolls. `now`: as for `paint`."""
    queues = ui.queues
    parts: dict[str, list[Text]] = {"title": [title(ui, width, now)]}
    if queues is not None:
        open_steps = sorted(queues.open_steps, key=lambda row: row.step)[:2]
        parts["steps"] = [steps.step_line(row, queues.version, width) for row in open_steps]
        parts["ahead"] = [ahead(queues, width)]
        parts["curves"] = curves(ui, width)
    parts["workers"] = _present(ui, width, max(3, height // 2))
    if queues is not None:
        parts["last"] = _last_step(queues, width)
        texts = [f"{fill('eval', steps.NAME)} {text}" for text in evaluation_lines(queues.val)]
        parts["evaluation"] = [Text(cut(text, width), no_wrap=True) for text in texts]
        parts["trouble"] = troubles(queues, width, 5) if queues.troubles else []
    parts["notices"] = [Text(cut(line_of(notice), width), style="yellow", no_wrap=True) for notice in ui.notices]
    for name in GLANCE_ORDER:
        if sum(map(len, parts.values())) <= height:
            break
        parts.pop(name, None)
    lines = [line for part in parts.values() for line in part][:height]
    for line in lines:
        line.truncate(width)
    return lines


def _present(ui: UiState, width: int, height: int) -> list[Text]:
    """The workers that have joined as a table, then those that are starting."""
    entries = worker_entries(ui.queues, ui.history) if ui.queues else []
    here = entries[: max(0, height - 1 - min(len(ui.absent), height // 2))]
    lines = draw(here, WORKER_COLUMNS, width=width, height=len(here) + 1).lines if here else []
    for one in sorted(ui.absent)[: height - len(lines)]:
        lines.append(Text(cut(f"{fill(f'{ROLES[one.role]} {one.name}', 13)} {one.phase}", width), style="dim"))
    if more := len(entries) + len(ui.absent) - (len(lines) - bool(here)):
        lines.append(Text(cut(f"and {more:,} more; rhymed top shows all", width), style="dim"))
    return lines


def _last_step(queues: Queues, width: int) -> list[Text]:
    values = [
        f"{name} {form.format(queues.metrics[key])}"
        for key, name, form in (*STEP_COLUMNS[:3], DRAFTED, *STEP_COLUMNS[3:])
        if key in queues.metrics
    ]
    text = Text(f"{fill('last step', steps.NAME)} ", style="bold dim", no_wrap=True)
    return [text.append(cut("  ".join(values), width - text.cell_len), style="not bold not dim")] if values else []


def _stale(ui: UiState, body: list[Text], table: list[Text]) -> list[Text]:
    """The lines that do not show the present state."""
    if ui.connection.state in ("silent", "ended"):
        return body
    return table if ui.view == "group" and ui.step_done else []


def _above(ui: UiState, width: int, height: int, room: int) -> list[Text]:
    """As many blocks as leave enough of `room` lines for the table."""
    blocks = _blocks(ui, width, height)
    for name in DROP_ORDER:
        if sum(map(len, blocks.values())) + min(TABLE_LINES, room) <= room:
            break
        blocks.pop(name, None)
    return [line for block in blocks.values() for line in block]


def _blocks(ui: UiState, width: int, height: int) -> dict[str, list[Text]]:
    """Above the table, from top to bottom."""
    queues = ui.queues
    if queues is None:
        return {}
    blocks: dict[str, list[Text]] = {}
    if ui.view in ("workers", "groups"):
        blocks["queues"] = depths(queues, width)
        blocks["steps"] = [
            steps.step_line(row, queues.version, width)
            for row in sorted(queues.open_steps, key=lambda row: row.step)[: 2 if height < 30 else 4]
        ]
        if ui.view == "workers":
            blocks["groups"] = steps.group_lines(queues, width, 3 if height < 30 else max(4, height // 5))
        blocks["ahead"] = [ahead(queues, width)]
        blocks["curves"] = curves(ui, width)
    else:
        blocks["detail"] = (worker_lines if ui.view == "worker" else group_lines)(ui, width)
    blocks["trouble"] = troubles(queues, width, 2 if height < 30 else 5)
    return {name: lines for name, lines in blocks.items() if lines}


def title(ui: UiState, width: int, now: float) -> Text:
    """The run, its progress, and whether the screen is live."""
    state, style = link_text(ui, now)
    text = Text(no_wrap=True)
    queues = ui.queues
    if queues is None:
        text.append(cut("rhymed top", max(0, width - len(state) - 1)), style="bold")
    else:
        lag = f"  lag {queues.lag_ms:.1f} ms"
        room = width - len(state) - 2
        texts = _progress(ui, queues)
        progress = next((text for text in texts if len(text) + 4 <= room), texts[-1])
        text.append(cut(line_of(queues.run), max(1, room - len(progress))), style="bold")
        text.append(progress)
        if text.cell_len + len(lag) + 14 <= room and queues.steps:
            text.append("  ")
            pieces = [(queues.step, "━", "green"), (queues.steps - queues.step, "─", "grey50")]
            text.append_text(bar(pieces, min(24, room - text.cell_len - len(lag))))
        if text.cell_len + len(lag) <= room:
            text.append(lag, style="dim")
    text.append(" " * max(1, width - text.cell_len - len(state)))
    text.append(state, style=style)
    if text.cell_len > width:  # the state matters more than the name
        return Text(cut(state, width), style=style, no_wrap=True)
    return text


def _progress(ui: UiState, queues: Queues) -> list[str]:
    """Texts for less and less room."""
    step, version = f"  step {queues.step}/{queues.steps}", f"  v{queues.version}"
    times = ui.times
    if times is None:
        return [f"{step}{version}  up {age(queues.uptime_s)}", f" {queues.step}/{queues.steps}"]
    left = "" if queues.paused else times.left
    short = f"  {age(times.elapsed_s)}" + (f"  {left.removeprefix('about ')}" if left else "")
    long = f"  {age(times.elapsed_s)} elapsed" + (f", {left}" if left else "")
    return [step + version + long, step + short, f" {queues.step}/{queues.steps}"]


def link_text(ui: UiState, now: float) -> tuple[str, str]:
    silent = age(now - ui.connection.since)
    match ui.connection.state:
        case "waiting":
            return f"○ asking the broker, {silent}", "yellow"
        case "silent":
            return f"○ no answer for {silent}", "bold red"
        case "ended":
            return f"■ ended {silent} ago", "bold"
        case "finished":
            return "✓ finished", "bold green"
    if ui.queues is not None and ui.queues.paused:
        return "‖ PAUSED", "bold black on yellow"
    return "● live", "green"


def depths(queues: Queues, width: int) -> list[Text]:
    """Every queue: its name, its depth, the age of its oldest sample."""
    there = shown_states(queues)
    states = [state for state in COLOURS if state in there]
    for state in QUEUE_DROP_ORDER:
        if len(states) * QUEUE_CELLS > width and state in states:
            states.remove(state)
    cell = min(14, max(QUEUE_CELLS, width // max(1, len(states))))
    names, sizes, ages = (Text(no_wrap=True) for _ in range(3))
    for state in states:
        names.append(fill(state, cell - 1, right=True) + " ", style=COLOURS[state])
        size = queues.queues[state]
        sizes.append(fill(count(size), cell - 1, right=True) + " ", style="bold" if size else "dim")
        oldest = age(queues.oldest_s[state]) if state in queues.oldest_s else ""
        ages.append(fill(oldest, cell - 1, right=True) + " ", style="dim")
    return [names, sizes, ages]


def ahead(queues: Queues, width: int) -> Text:
    """The next step's samples, staleness, and the weights of the workers."""
    rollouts = [row for row in queues.workers if row.role == "rollout"]
    at: dict[int, int] = {}
    for row in rollouts:
        at[row.version] = at.get(row.version, 0) + 1
    weights = ", ".join(f"{number} at {_version(version)}" for version, number in sorted(at.items(), reverse=True))
    next_steps = [row for row in queues.open_steps if queues.version < row.step < EVAL]
    begun = sum(count for row in next_steps for state, count in row.states.items() if state != "waiting")
    text = Text(no_wrap=True)
    text.append(f"{fill('ahead', steps.NAME)} ", style="bold dim")
    text.append(f"{begun} started, {sum(row.parked for row in rollouts)} done")
    metrics = queues.metrics
    if "rollout/ahead_kept_ratio" in metrics:
        text.append(f", {100 * metrics['rollout/ahead_kept_ratio']:.0f}% kept")
    if "staleness/mean" in metrics:
        text.append(f"  stale {number(metrics['staleness/mean'])}, max {number(metrics.get('staleness/max', 0))}")
    if "rollout/bubble_ratio" in metrics:
        text.append(f"  bubble {100 * metrics['rollout/bubble_ratio']:.0f}%")
    if weights:
        text.append(cut(f"  weights {weights}", max(0, width - text.cell_len)))
    return text


def _version(version: int) -> str:
    return f"v{version}" if version >= 0 else "none"


def curves(ui: UiState, width: int) -> list[Text]:
    """Reward and length by step, tokens per second by time; with enough room, two side by side."""
    history = ui.history
    series = [("reward", history.series(REWARD), "yellow"), ("length", history.series(LENGTH), "magenta")]
    rate = ("tok/s", list(history.rates), "cyan")
    if width < WIDE:
        lines = [spark(label, values, width, style=style) for label, values, style in series]
        return [*lines, spark(rate[0], rate[1], width, count(rate[1][-1]) if rate[1] else "", rate[2])]
    half = width // 2 - 1
    left, right = (spark(label, values, half, style=style) for label, values, style in series)
    left.append(" " * (half + 2 - left.cell_len))
    left.append_text(right)
    return [left, spark(rate[0], rate[1], width, count(rate[1][-1]) if rate[1] else "", rate[2])]


def troubles(queues: Queues, width: int, height: int) -> list[Text]:
    texts = [f"waiting: {line_of(trouble)}" for trouble in queues.troubles[:height]]
    lines = [Text(cut(text, width), style="bold red") for text in texts]
    if len(queues.troubles) > height and lines:
        more = f"  and {len(queues.troubles) - height} more"
        lines[-1] = Text(cut(lines[-1].plain, width - len(more)) + more, style="bold red")
    if not lines and (text := starting(queues)):
        lines = [Text(cut(text, width), style="yellow")]
    return lines


def footer(ui: UiState, width: int) -> Text:
    """The filter while it is typed, the note, or the keys."""
    if ui.typing:
        return Text(cut(f"/{ui.filter}▏ enter keeps it, esc clears it", width), style="bold")
    if ui.note:
        return Text(cut(ui.note, width), style="bold red" if ui.is_error else "bold green")
    text = Text(no_wrap=True)
    for key, what in KEYS:
        if text.cell_len + len(key) + len(what) + 3 > width:
            break
        text.append(f" {key} ", style="reverse")
        text.append(f"{what} ", style="dim")
    return text


class _TableLines(NamedTuple):
    lines: list[Text]
    names: list[str | None]
    page: int


def _table(ui: UiState, table: Listing, width: int, height: int) -> _TableLines:
    if height <= 0:
        return _TableLines([], [], 1)
    bare = height < 3
    sort, reverse = ui.sorts.get(ui.view, ("", False))
    window = draw(
        table.rows, table.columns, width=width, height=height if bare else height - 1,
        selected=table.selected(ui), first=ui.first.get(ui.view, 0), sort=sort, reverse=reverse,
        empty=table.empty,
    )  # fmt: skip
    ui.first[ui.view] = window.first
    names = [None if row is None else table.name(row) for row in window.rows]
    page = max(1, len(window.lines) - 1)
    if bare:
        return _TableLines(window.lines, names, page)
    return _TableLines([_rule(ui, table, width, window.first, page), *window.lines], [None, *names], page)


def _rule(ui: UiState, table: Listing, width: int, first: int, page: int) -> Text:
    """The line above the table: its title, and which part is visible."""
    total = len(table.rows)
    part = f" {first + 1}-{min(total, first + page)} of {total:,} " if total > page else f" {total:,} "
    name = f"─ {table.title}" + (f" with {ui.filter!r}" if ui.filter else "") + part
    return Text(cut(name + "─" * max(0, width - len(name)), width), style="dim")


def _below(ui: UiState, table: Listing, width: int, room: int) -> list[Text]:
    """Below the table of a group: the history of the selected sample."""
    if ui.view != "group" or not table.rows:
        return []
    member: Any = table.rows[table.selected(ui)]
    return steps.story_lines(member, width, max(0, room - min(len(table.rows) + 2, max(TABLE_LINES, room // 2))))


# A box in the middle of the screen: the keys, or a question. Pure.

HELP = (
    "up down j k     select       page up/down, home, end, mouse",
    "enter           open a worker, a sample, a group",
    "esc             back",
    "s               sort by the next column      r  reverse",
    "/               filter by name, host, role, phase",
    "g tab           workers, or groups of the open steps",
    "p               pause or resume the run",
    "d               drain the worker, or undo that",
    "q               quit; the run continues",
    "",
    "bars            █ settled  ▓ generated  ▒ running  · waiting",
    "ver             yellow: older weights than the run's",
    "idle            share of the last minute without work",
    "accept          tokens per forward of its last samples",
)


def help_box() -> list[Text]:
    return _framed(HELP, "any key closes this")


def question_box(question: Question) -> list[Text]:
    return _framed(("", *question.text, ""), "y yes   any other key no")


def over(lines: Sequence[Text], box: Sequence[Text], width: int) -> list[Text]:
    """The box over the middle of the lines; what does not fit is cut."""
    covered = list(lines)
    top = max(0, (len(lines) - len(box)) // 2)
    for place, row in enumerate(box[: len(lines)], top):
        left = max(0, (width - row.cell_len) // 2)
        under = covered[place].copy()
        under.pad_right(max(0, width - under.cell_len))
        before, rest = under.divide([left])
        after = rest[min(row.cell_len, rest.cell_len) :] if row.cell_len < len(rest) else Text()
        covered[place] = Text.assemble(before, row, after, no_wrap=True)
    return covered


def _framed(rows: Sequence[str], foot: str) -> list[Text]:
    inside = max(len(foot) + 2, *(len(row) for row in rows)) + 2
    lines = [f"╭{'─' * inside}╮", *(f"│ {fill(row, inside - 2)} │" for row in rows)]
    end = f" {foot} "
    lines.append(f"╰{'─' * (inside - len(end) - 1)}{end}─╯")
    return [Text(line, style="bold", no_wrap=True) for line in lines]


# Above the table in the views of one worker or one group: what it is, what it did, how fast. Pure.

ACTIVITY_BAR = 32
STATS_LINES = 3
STAT_CELLS = 40  # at least


def worker_lines(ui: UiState, width: int) -> list[Text]:
    row = find(ui.queues.workers, ui.worker) if ui.queues else None
    if row is None:
        return [Text(cut(f"{ui.worker} is not connected; Esc goes back", width), style="bold red")]
    lines = [_card(row)]
    if shares := ui.history.shares(row.worker):
        pieces = [(round(1000 * part), "█", TERMINAL.get(name, "")) for name, part in shares.items()]
        text = bar(pieces, min(ACTIVITY_BAR, width))
        text.append(" ")
        for name, part in sorted(shares.items(), key=lambda item: -item[1]):
            if part < 0.005:
                continue
            text.append(f" {name} ", style=TERMINAL.get(name, ""))
            text.append(f"{100 * part:.0f}%")
        text.append("  in the last minute", style="dim")
        lines.append(text)
    if rates := ui.history.rates_of(row.worker):
        lines.append(spark("tok/s", rates, width, count(rates[-1])))
    if row.usage:
        lines.append(_usage(row.usage, width))
        if busy := ui.history.busy_of(row.worker):
            gpus = utilization(row.usage) is not None
            lines.append(spark("GPU" if gpus else "CPU", busy, width, share(busy[-1]) if gpus else f"{busy[-1]:.1f}"))
    lines += _stats(row, width)
    return lines


def _card(row: WorkerRow) -> Text:
    text = Text(no_wrap=True)
    text.append(f"{ROLES[row.role]} {line_of(row.worker)}", style=f"bold {STYLES[row.role]}")
    text.append(f"  {row.role} on {line_of(row.host)}, pid {row.pid}")
    if row.version >= 0 and row.role != "reward":
        text.append(f"  v{row.version}")
    if row.role != "trainer":
        text.append(f"  {row.held - row.parked}/{row.slots} slots")
    if row.parked:
        text.append(f"  {row.parked} ahead")
    if row.accept_length:
        text.append(f"  {row.accept_length:.2f} tokens per forward")
    text.append(f"  heard {age(row.silent_s)} ago  {line_of(row.phase)}")
    if row.drained:
        text.append("  DRAINED", style="bold yellow")
    return text


def _usage(usage: Usage, width: int) -> Text:
    """`1.5 processors, 2.1 GiB, GPU 3 H200: 91%, 61.2 GiB of 139.8 GiB, 64 °C`"""
    parts = [counted(round(usage.cpu, 1), "processor"), size_of(usage.memory)]
    if usage.processes > 1:
        parts.append(counted(usage.processes, "process", "processes"))
    text = ", ".join(parts)
    for gpu in usage.gpus:
        numbers = [
            "" if gpu.utilization is None else share(gpu.utilization),
            "" if gpu.memory is None else f"{size_of(gpu.memory)} of {size_of(gpu.memory_total or 0)}",
            "" if gpu.celsius is None else f"{gpu.celsius:.0f} °C",
        ]
        text += f"; GPU {gpu.index} {line_of(gpu.kind)}: {', '.join(filter(None, numbers)) or UNKNOWN}"
    if usage.failures:
        text += f"; {counted(usage.failures, 'call')} of NVML failed"
    return Text(cut(text, width), no_wrap=True)


def _stats(row: WorkerRow, width: int) -> list[Text]:
    stats = [
        f"{line_of(name)} {number(value)}"
        for name, value in sorted(row.stats.items())
        if not name.startswith(PREFIX) and name != RATE
    ]
    across = max(1, width // STAT_CELLS)
    lines = []
    for start in range(0, min(len(stats), STATS_LINES * across), across):
        cells = [cut(text, STAT_CELLS - 2).ljust(STAT_CELLS) for text in stats[start : start + across]]
        lines.append(Text("".join(cells), style="dim", no_wrap=True))
    return lines


def group_lines(ui: UiState, width: int) -> list[Text]:
    step, prompt = ui.prompt
    text = Text(no_wrap=True)
    text.append(f"{step_name(step)}, prompt {line_of(prompt)}", style="bold")
    if ui.group is None:
        text.append("  asking the broker", style="dim")
    elif ui.group.expected:
        text.append(f"  {count(ui.group.expected)} tokens expected per sample")
    return [text, *(_afterwards(ui, width) if ui.step_done else ())]


def _afterwards(ui: UiState, width: int) -> list[Text]:
    """For a group whose step is done: the commands that show what followed."""
    step, prompt = ui.prompt
    table = listing(ui)
    index = table.name(table.rows[table.selected(ui)]) if table.rows else "0"
    head = "the step is done; below is its last known state" if table.rows else "the step is done"
    arguments = f"rhymed history show {line_of(prompt)}", f"rhymed logs --sample {step}/{line_of(prompt)}/{index}"
    commands = [command + ui.run for command in arguments]
    return [
        Text(cut(f"{head}. For what followed:", width), style="bold yellow", no_wrap=True),
        *(Text(cut(f"  {command}", width), no_wrap=True) for command in commands),
    ]
