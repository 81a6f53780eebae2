"""The whole screen from a look: exactly as many lines as the terminal has, each no wider than it. Pure.

From the top: the run, its queues, the open steps, groups, staleness, curves, what keeps it waiting, then a table that
takes what is left, and the keys. Where there is little room, what matters least goes first, down to a few cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.text import Text

from rhymed.messages import EVAL, Queues
from rhymed.style import COLOURS
from rhymed.text import age
from rhymed.top import detail, steps
from rhymed.top.dialogs import help_box, over, question_box
from rhymed.top.state import LENGTH, REWARD, Look
from rhymed.top.table import draw
from rhymed.top.text import clean, count, cut, fill, number, spark
from rhymed.top.views import Listing, listing

TABLE = 5  # lines that a table wants at least
DEPTH = 9  # cells of a queue
WIDE = 100  # columns, from which curves stand side by side
GIVE_WAY = ("groups", "curves", "ahead", "detail", "steps", "queues", "trouble")
"""Blocks above the table, in the order in which they go when there is no room."""
LEAST_IMPORTANT = ("trained", "dropped", "training", "generated", "scoring", "scored", "waiting")

KEYS = (
    ("q", "quit"), ("?", "help"), ("⏎", "open"), ("esc", "back"), ("s", "sort"), ("/", "filter"), ("g", "groups"),
    ("p", "pause"), ("d", "drain"),
)  # fmt: skip


class Frame(NamedTuple):
    lines: list[Text]  # one a line of the terminal
    names: list[str | None]  # which row of the table a line is
    page: int  # rows of the table in sight


def paint(look: Look, width: int, height: int, now: float) -> Frame:
    """`now`: on the clock of `look.link.since`, seconds. Remembers in `look` which row is at the top."""
    head = [title(look, width, now)]
    foot = [footer(look, width)] if height > 2 else []
    room = height - len(head) - len(foot)
    above = _above(look, width, height, room)
    table = listing(look)
    below = _below(look, table, width, room - len(above))
    middle = _table(look, table, width, max(0, room - len(above) - len(below)))
    lines = [*head, *above, *middle.lines, *below, *foot][:height]
    names = [*[None] * (len(head) + len(above)), *middle.names, *[None] * (len(below) + len(foot))][:height]
    for line in _old(look, lines[1 : len(lines) - len(foot)], [*middle.lines, *below]):
        line.stylize("dim")
    box = question_box(look.question) if look.question else help_box() if look.helping else None
    if box is not None:
        lines = over(lines, box, width)
    for line in lines:
        line.truncate(width)
    return Frame(lines, names, middle.page)


def _old(look: Look, picture: list[Text], table: list[Text]) -> list[Text]:
    """The lines that are not how it is just now."""
    if look.link.state in ("silent", "ended"):
        return picture
    return table if look.view == "group" and look.past else []


def _above(look: Look, width: int, height: int, room: int) -> list[Text]:
    """The blocks that leave the table enough of `room` lines."""
    blocks = _blocks(look, width, height)
    for name in GIVE_WAY:
        if sum(map(len, blocks.values())) + min(TABLE, room) <= room:
            break
        blocks.pop(name, None)
    return [line for block in blocks.values() for line in block]


def _blocks(look: Look, width: int, height: int) -> dict[str, list[Text]]:
    """Above the table, from top to bottom."""
    queues = look.queues
    if queues is None:
        return {}
    found = {}
    if look.view in ("workers", "groups"):
        found["queues"] = depths(queues, width)
        found["steps"] = [
            steps.step_line(row, queues.version, width)
            for row in sorted(queues.open_steps, key=lambda row: row.step)[: 2 if height < 30 else 4]
        ]
        if look.view == "workers":
            found["groups"] = steps.group_lines(queues, width, 3 if height < 30 else max(4, height // 5))
        found["ahead"] = [ahead(queues, width)]
        found["curves"] = curves(look, width)
    else:
        found["detail"] = (detail.worker_lines if look.view == "worker" else detail.group_lines)(look, width)
    found["trouble"] = troubles(queues, width, 2 if height < 30 else 5)
    return {name: lines for name, lines in found.items() if lines}


# -- the lines -------------------------------------------------------------------------------------------------------


def title(look: Look, width: int, now: float) -> Text:
    """Which run, how far it is, and whether this is how it is just now."""
    state, style = link_text(look, now)
    text = Text(no_wrap=True)
    queues = look.queues
    if queues is None:
        text.append(cut("rhymed top", max(0, width - len(state) - 1)), style="bold")
    else:
        told = f"  step {queues.step}/{queues.steps}  v{queues.version}  up {age(queues.uptime_s)}"
        lag = f"  lag {queues.lag_ms:.1f} ms"
        room = width - len(state) - 2
        if len(told) + 4 > room:
            told = f" {queues.step}/{queues.steps}"
        text.append(cut(clean(queues.run), max(1, room - len(told))), style="bold")
        text.append(told)
        if text.cell_len + len(lag) + 14 <= room and queues.steps:
            text.append("  ")
            pieces = [(queues.step, "━", "green"), (queues.steps - queues.step, "─", "grey50")]
            text.append_text(steps.bar(pieces, min(24, room - text.cell_len - len(lag))))
        if text.cell_len + len(lag) <= room:
            text.append(lag, style="dim")
    text.append(" " * max(1, width - text.cell_len - len(state)))
    text.append(state, style=style)
    if text.cell_len > width:  # what it is like matters more than what it is called
        return Text(cut(state, width), style=style, no_wrap=True)
    return text


def link_text(look: Look, now: float) -> tuple[str, str]:
    silent = age(now - look.link.since)
    match look.link.state:
        case "waiting":
            return f"○ asking the broker, {silent}", "yellow"
        case "silent":
            return f"○ no answer for {silent}", "bold red"
        case "ended":
            return f"■ ended {silent} ago", "bold"
        case "finished":
            return "✓ finished", "bold green"
    if look.queues is not None and look.queues.paused:
        return "‖ PAUSED", "bold black on yellow"
    return "● live", "green"


def depths(queues: Queues, width: int) -> list[Text]:
    """Every queue: its name, its depth, the age of its oldest sample."""
    states = [state for state in COLOURS if state in queues.queues]
    for state in LEAST_IMPORTANT:
        if len(states) * DEPTH > width and state in states:
            states.remove(state)
    cell = min(14, max(DEPTH, width // max(1, len(states))))
    names, sizes, ages = (Text(no_wrap=True) for _ in range(3))
    for state in states:
        names.append(fill(state, cell - 1, right=True) + " ", style=COLOURS[state])
        size = queues.queues[state]
        sizes.append(fill(count(size), cell - 1, right=True) + " ", style="bold" if size else "dim")
        oldest = age(queues.oldest_s[state]) if state in queues.oldest_s else ""
        ages.append(fill(oldest, cell - 1, right=True) + " ", style="dim")
    return [names, sizes, ages]


def ahead(queues: Queues, width: int) -> Text:
    """Which weights the workers have, what is written ahead, how old tokens were at training."""
    crew = [row for row in queues.workers if row.role == "rollout"]
    at: dict[int, int] = {}
    for row in crew:
        at[row.version] = at.get(row.version, 0) + 1
    weights = ", ".join(f"{number} at {_version(version)}" for version, number in sorted(at.items(), reverse=True))
    next_steps = [row for row in queues.open_steps if queues.version < row.step < EVAL]
    begun = sum(count for row in next_steps for state, count in row.states.items() if state != "waiting")
    text = Text(no_wrap=True)
    text.append(f"{fill('ahead', steps.NAME)} ", style="bold dim")
    text.append(f"{begun} begun, {sum(row.parked for row in crew)} written")
    metrics = queues.metrics
    if "rollout/ahead_kept_ratio" in metrics:
        text.append(f", {100 * metrics['rollout/ahead_kept_ratio']:.0f}% kept")
    if "staleness/mean" in metrics:
        text.append(f"  stale {number(metrics['staleness/mean'])}, most {number(metrics.get('staleness/max', 0))}")
    if "rollout/bubble_ratio" in metrics:
        text.append(f"  bubble {100 * metrics['rollout/bubble_ratio']:.0f}%")
    if weights:
        text.append(cut(f"  weights {weights}", max(0, width - text.cell_len)))
    return text


def _version(version: int) -> str:
    return f"v{version}" if version >= 0 else "none"


def curves(look: Look, width: int) -> list[Text]:
    """Reward and length by step, tokens a second by time; where there is room, two side by side."""
    history = look.history
    told = [("reward", history.series(REWARD), "yellow"), ("length", history.series(LENGTH), "magenta")]
    rate = ("tok/s", list(history.rates), "cyan")
    if width < WIDE:
        lines = [spark(label, values, width, style=style) for label, values, style in told]
        return [*lines, spark(rate[0], rate[1], width, count(rate[1][-1]) if rate[1] else "", rate[2])]
    half = width // 2 - 1
    left, right = (spark(label, values, half, style=style) for label, values, style in told)
    left.append(" " * (half + 2 - left.cell_len))
    left.append_text(right)
    return [left, spark(rate[0], rate[1], width, count(rate[1][-1]) if rate[1] else "", rate[2])]


def troubles(queues: Queues, width: int, height: int) -> list[Text]:
    lines = [Text(cut(f"waits: {clean(trouble)}", width), style="bold red") for trouble in queues.troubles[:height]]
    if len(queues.troubles) > height and lines:
        more = f"  and {len(queues.troubles) - height} more"
        lines[-1] = Text(cut(lines[-1].plain, width - len(more)) + more, style="bold red")
    return lines


def footer(look: Look, width: int) -> Text:
    """The filter that is being written, what came of the last order, or the keys."""
    if look.typing:
        return Text(cut(f"/{look.filter}▏ enter keeps it, esc takes it away", width), style="bold")
    if look.note:
        return Text(cut(look.note, width), style="bold red" if look.wrong else "bold green")
    text = Text(no_wrap=True)
    for key, what in KEYS:
        if text.cell_len + len(key) + len(what) + 3 > width:
            break
        text.append(f" {key} ", style="reverse")
        text.append(f"{what} ", style="dim")
    return text


# -- the table -------------------------------------------------------------------------------------------------------


class _Middle(NamedTuple):
    lines: list[Text]
    names: list[str | None]
    page: int


def _table(look: Look, table: Listing, width: int, height: int) -> _Middle:
    if height <= 0:
        return _Middle([], [], 1)
    bare = height < 3
    sort, reverse = look.sorts.get(look.view, ("", False))
    window = draw(
        table.rows, table.columns, width=width, height=height if bare else height - 1,
        selected=table.selected(look), first=look.first.get(look.view, 0), sort=sort, reverse=reverse,
        empty=table.empty,
    )  # fmt: skip
    look.first[look.view] = window.first
    names = [None if row is None else table.name(row) for row in window.rows]
    page = max(1, len(window.lines) - 1)
    if bare:
        return _Middle(window.lines, names, page)
    return _Middle([_rule(look, table, width, window.first, page), *window.lines], [None, *names], page)


def _rule(look: Look, table: Listing, width: int, first: int, page: int) -> Text:
    """A line over the table: what it is of, which part of it is in sight."""
    total = len(table.rows)
    part = f" {first + 1}-{min(total, first + page)} of {total:,} " if total > page else f" {total:,} "
    name = f"─ {table.title}" + (f" with {look.filter!r}" if look.filter else "") + part
    return Text(cut(name + "─" * max(0, width - len(name)), width), style="dim")


def _below(look: Look, table: Listing, width: int, room: int) -> list[Text]:
    """Under the table of a group: the story of the selected sample."""
    if look.view != "group" or not table.rows:
        return []
    member: Any = table.rows[table.selected(look)]
    return steps.story_lines(member, width, max(0, room - min(len(table.rows) + 2, max(TABLE, room // 2))))
