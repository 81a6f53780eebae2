"""What a run does as lines of a terminal, for `rhymed top` and for `rhymed run`. Pure.

From the top: the run, what it waits for, its queues, the open steps, run-ahead work, curves, the last step, the
newest evaluation, what happened to processes, and the workers, as many as there is room for.
"""

from __future__ import annotations

from rich.text import Text

from rhymed.core.messages import EVAL, Queues, StepRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.stragglers import shown_states, starting
from rhymed.core.style import COLOURS, GLYPHS, ROLES, bar
from rhymed.core.text import STEP_COLUMNS, age, evaluation_lines, step_name
from rhymed.show.top.state import LENGTH, REWARD, Shown
from rhymed.show.top.table import count, cut, draw, fill, number, spark
from rhymed.show.top.workers import WORKER_COLUMNS, worker_entries

NAME = 10  # cells before a line's contents
STEPS = 3  # open ones
TROUBLES = 5
QUEUE_CELLS = 9, 14  # of a queue, at least and at most

DRAFTED = ("rollout/spec_accept_length", "tok/fwd", "{:.2f}")
"""Of the last step, if the engine drafts; a step's plain line has no room for it."""


def picture(shown: Shown, width: int, height: int, now: float) -> list[Text]:
    """At most `height` lines, the most important first. `now`: on the clock of `shown.connection`, seconds."""
    queues = shown.queues
    lines = [title(shown, width, now)]
    if queues is not None:
        open_steps = sorted(queues.open_steps, key=lambda row: row.step)[:STEPS]
        evaluations = [f"{fill('eval', NAME)} {text}" for text in evaluation_lines(queues.val)]
        lines += [
            *troubles(queues, width),
            *depths(queues, width),
            *(step_line(row, queues.version, width) for row in open_steps),
            ahead(queues, width),
            *curves(shown, width),
            *_last_step(queues, width),
            *(Text(cut(text, width), no_wrap=True) for text in evaluations),
        ]
    lines += [Text(cut(line_of(notice), width), style="yellow", no_wrap=True) for notice in shown.notices]
    lines = [*lines, *_workers(shown, width, height - len(lines))][:height]
    for line in lines:
        line.truncate(width)
    if shown.connection.state in ("silent", "ended"):
        for line in lines[1:]:
            line.stylize("dim")  # it is not the present state
    return lines


def _workers(shown: Shown, width: int, room: int) -> list[Text]:
    """Those that have joined as a table, then those that are starting."""
    entries = worker_entries(shown.queues) if shown.queues else []
    absent = [
        Text(cut(f"{fill(f'{ROLES[one.role]} {one.name}', 13)} {one.phase}", width), style="dim")
        for one in sorted(shown.absent)
    ]
    left = len(entries) + bool(entries) + len(absent) - max(1, room)
    if left <= 0:
        return [*draw(entries, WORKER_COLUMNS, width), *absent]
    listed = [*draw(entries[:room], WORKER_COLUMNS, width), *absent][: max(0, room - 1)]
    return [*listed, Text(cut(f"and {left + 1:,} more; rhymed queues shows all", width), style="dim")]


def title(shown: Shown, width: int, now: float) -> Text:
    """The run, its progress, and whether the screen is live, which matters most."""
    state, style = link_text(shown, now)
    text = Text(no_wrap=True)
    queues = shown.queues
    room = max(0, width - len(state) - 2)
    if queues is not None:
        text.append(line_of(queues.run), style="bold")
        text.append(f"  step {queues.step}/{queues.steps}  v{queues.version}  {_times(shown, queues)}")
        text = text if text.cell_len <= room else Text(cut(text.plain, room), no_wrap=True)
        if text.cell_len + 12 <= room and queues.steps:
            pieces = [(queues.step, "━", "green"), (queues.steps - queues.step, "─", "grey50")]
            text.append("  ").append_text(bar(pieces, min(24, room - text.cell_len - 2)))
    text.append(" " * max(0, width - text.cell_len - len(state)))
    return text.append(cut(state, width), style=style)


def _times(shown: Shown, queues: Queues) -> str:
    times = shown.times
    if times is None:
        return f"up {age(queues.uptime_s)}"
    return f"{age(times.elapsed_s)} elapsed" + (f", {times.left}" if times.left and not queues.paused else "")


def link_text(shown: Shown, now: float) -> tuple[str, str]:
    silent = age(now - shown.connection.since)
    match shown.connection.state:
        case "waiting":
            return f"○ asking the broker, {silent}", "yellow"
        case "silent":
            return f"○ no answer for {silent}", "bold red"
        case "ended":
            return f"■ ended {silent} ago", "bold"
        case "finished":
            return "✓ finished", "bold green"
    if shown.queues is not None and shown.queues.paused:
        return "‖ PAUSED", "bold black on yellow"
    return "● live", "green"


def depths(queues: Queues, width: int) -> list[Text]:
    """Every queue: its name, its depth, the age of its oldest sample."""
    there = shown_states(queues)
    states = [state for state in COLOURS if state in there]
    least, most = QUEUE_CELLS
    cell = min(most, max(least, width // max(1, len(states))))
    names, sizes, ages = (Text(no_wrap=True) for _ in range(3))
    for state in states:
        names.append(fill(state, cell - 1, right=True) + " ", style=COLOURS[state])
        size = queues.queues[state]
        sizes.append(fill(count(size), cell - 1, right=True) + " ", style="bold" if size else "dim")
        oldest = age(queues.oldest_s[state]) if state in queues.oldest_s else ""
        ages.append(fill(oldest, cell - 1, right=True) + " ", style="dim")
    return [names, sizes, ages]


def step_line(row: StepRow, version: int, width: int) -> Text:
    """One open step: the states of its samples, and how many of its groups are ready."""
    name = step_name(row.step)
    replaced = f", {row.refilled} replaced" if row.refilled else ""
    facts = f" {row.groups_ready}/{row.groups} groups{replaced}  {age(row.open_s)}"
    states = "  ".join(f"{count} {state}" for state in GLYPHS if (count := row.states.get(state)))
    if row.step > version and not name.startswith("eval"):
        states = f"next  {states}"
    text = Text(f"{fill(name, NAME)} ", no_wrap=True, style="" if row.step == version else "dim")
    room = width - NAME - 1 - len(facts)
    cells = max(8, min(60, room - 30)) if room >= 38 else max(0, room)
    pieces = [(row.states.get(state, 0), glyph, COLOURS[state]) for state, glyph in GLYPHS.items()]
    text.append_text(bar(pieces, cells))
    text.append(facts)
    left = width - text.cell_len - 2
    if left > 8:
        text.append("  " + cut(states, left), style="dim")
    return text


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
    text.append(f"{fill('ahead', NAME)} ", style="bold dim")
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


def curves(shown: Shown, width: int) -> list[Text]:
    """Reward and length by step, tokens per second by time."""
    rates = list(shown.history.rates)
    return [
        spark("reward", shown.history.series(REWARD), width, style="yellow"),
        spark("length", shown.history.series(LENGTH), width, style="magenta"),
        spark("tok/s", rates, width, count(rates[-1]) if rates else "", "cyan"),
    ]


def troubles(queues: Queues, width: int) -> list[Text]:
    """What the run waits for; before all roles are there, who has not joined yet."""
    texts = [f"waiting: {line_of(trouble)}" for trouble in queues.troubles[:TROUBLES]]
    if more := len(queues.troubles) - len(texts):
        texts.append(f"and {more} more")
    if not texts and (text := starting(queues)):
        return [Text(cut(text, width), style="yellow")]
    return [Text(cut(text, width), style="bold red") for text in texts]


def _last_step(queues: Queues, width: int) -> list[Text]:
    values = [
        f"{name} {form.format(queues.metrics[key])}"
        for key, name, form in (*STEP_COLUMNS[:3], DRAFTED, *STEP_COLUMNS[3:])
        if key in queues.metrics
    ]
    text = Text(f"{fill('last step', NAME)} ", style="bold dim", no_wrap=True)
    return [text.append(cut("  ".join(values), width - text.cell_len), style="not bold not dim")] if values else []
