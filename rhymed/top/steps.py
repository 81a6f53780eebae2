"""Open steps and their groups as bars, one prompt's samples as rows. Pure.

Every part of a bar has a glyph of its own beside its colour, so that it can be read without colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from rhymed.messages import Group, GroupRow, Member, Queues, StepRow
from rhymed.style import COLOURS
from rhymed.text import age, step_name
from rhymed.top.table import Cell, Column
from rhymed.top.text import UNKNOWN, clean, count, cut, fill, number

GLYPHS = {
    "trained": "█",
    "training": "█",
    "scored": "█",
    "scoring": "▓",
    "generated": "▓",
    "running": "▒",
    "waiting": "·",
    "dropped": "x",
}
"""State -> what a bar is made of, in the order of its parts."""

PARTS = (("settled", "█", "yellow"), ("written", "▓", "blue"), ("running", "▒", "cyan"), ("waiting", "·", "grey50"))
"""Of a group's bar: field of GroupRow, glyph, colour."""

CELL = 11  # width of a group without its bar: prompt and tokens
GROUP_BAR = 12
NAME = 10  # of a step


def parts(sizes: Sequence[int], width: int) -> list[int]:
    """Cells for each size: they sum to `width`, and what is there at all is seen, if there is room for it."""
    total = sum(sizes)
    if not total or width <= 0:
        return [0] * len(sizes)
    exact = [width * size / total for size in sizes]
    cells = [int(part) for part in exact]
    order = sorted(range(len(sizes)), key=lambda place: cells[place] - exact[place])
    for place in order[: width - sum(cells)]:
        cells[place] += 1
    for place, size in enumerate(sizes):
        greatest = max(range(len(sizes)), key=cells.__getitem__)
        if size and not cells[place] and cells[greatest] > 1:
            cells[place], cells[greatest] = 1, cells[greatest] - 1
    return cells


def bar(pieces: Sequence[tuple[int, str, str]], width: int) -> Text:
    """(size, glyph, style) side by side."""
    text = Text(no_wrap=True)
    for (_, glyph, style), cells in zip(pieces, parts([size for size, _, _ in pieces], width), strict=True):
        text.append(glyph * cells, style=style)
    text.append(" " * (width - text.cell_len))
    return text


def step_line(row: StepRow, version: int, width: int) -> Text:
    """One open step: where its samples are, and how many of its groups are ready."""
    name = step_name(row.step)
    told = f" {row.groups_ready}/{row.groups} groups  {age(row.open_s)}"
    states = "  ".join(f"{count} {state}" for state in GLYPHS if (count := row.states.get(state)))
    if row.step > version and not name.startswith("eval"):
        states = f"next  {states}"
    text = Text(f"{fill(name, NAME)} ", no_wrap=True, style="" if row.step == version else "dim")
    room = width - NAME - 1 - len(told)
    cells = max(8, min(60, room - 30)) if room >= 38 else max(0, room)
    pieces = [(row.states.get(state, 0), glyph, COLOURS[state]) for state, glyph in GLYPHS.items()]
    text.append_text(bar(pieces, cells))
    text.append(told)
    left = width - text.cell_len - 2
    if left > 8:
        text.append("  " + cut(states, left), style="dim")
    return text


def group_bar(row: GroupRow, width: int) -> Text:
    """One cell a sample, where there is room for it."""
    pieces = [(getattr(row, field), glyph, colour) for field, glyph, colour in PARTS]
    return bar(pieces, min(width, sum(size for size, _, _ in pieces)))


def group_cell(row: GroupRow, width: int) -> Text:
    """Prompt, bar and tokens; `width`: of the bar."""
    text = Text(f"{clean(row.prompt)[:4]:<4} ", no_wrap=True)
    text.append_text(group_bar(row, width))
    text.append(" " * (5 + width - text.cell_len))
    text.append(fill(count(row.longest) if row.longest else "", 6, right=True), style="dim")
    return text


def group_lines(queues: Queues, width: int, height: int) -> list[Text]:
    """The step in flight, a small bar a group, the ones with the longest sample first; and what the glyphs mean."""
    step = in_flight(queues)
    if step is None or not step.rows or height < 2 or width < CELL + GROUP_BAR:
        return []
    longest = min(GROUP_BAR, max(sum(getattr(row, field) for field, _, _ in PARTS) for row in step.rows))
    across = (width + 1) // (CELL + longest + 1)
    shown = step.rows[: across * (height - 1)]
    lines = [_legend(step.groups - len(shown))]
    for start in range(0, len(shown), across):
        line = Text(no_wrap=True)
        for row in shown[start : start + across]:
            line.append_text(group_cell(row, longest)).append(" ")
        lines.append(line)
    return lines


def _legend(more: int) -> Text:
    """`more`: groups that are not shown."""
    text = Text(no_wrap=True)
    text.append(fill("groups", NAME) + " ", style="bold dim")
    for field, glyph, colour in PARTS:
        text.append(glyph, style=colour)
        text.append(f" {field}  ", style="dim")
    text.append("longest", style="dim")
    if more > 0:
        text.append(f"   and {more:,} more", style="dim")
    return text


def in_flight(queues: Queues) -> StepRow | None:
    """The step that is to be trained next; while it is not open, the first one that is."""
    rows = sorted(queues.open_steps, key=lambda row: row.step)
    return next((row for row in rows if row.step == queues.version), rows[0] if rows else None)


@dataclass(frozen=True)
class Bundle:
    """A group in the table of groups."""

    step: int
    row: GroupRow

    @property
    def name(self) -> str:
        return f"{self.step}/{self.row.prompt}"


def bundles(queues: Queues, filter: str = "") -> list[Bundle]:
    found = [
        Bundle(step.step, row) for step in sorted(queues.open_steps, key=lambda one: one.step) for row in step.rows
    ]
    return [one for one in found if filter.casefold() in f"{step_name(one.step)} {one.row.prompt}".casefold()]


def untold(queues: Queues) -> int:
    """Groups of open steps that the snapshot does not name."""
    return sum(step.groups - len(step.rows) for step in queues.open_steps)


BIG_BAR = 14


def _glyphs(one: Bundle) -> Cell:
    return group_bar(one.row, BIG_BAR)


def _size(field: str) -> Column[Bundle]:
    def size(one: Bundle) -> int:
        return int(getattr(one.row, field))

    return Column(
        field, 7, lambda one: (str(size(one) or ""), ""), size, right=True, rank=4 if field == "written" else 3,
        falling=True,
    )  # fmt: skip


BUNDLES: tuple[Column[Bundle], ...] = (
    Column("step", 6, lambda one: (step_name(one.step).removeprefix("step "), ""), lambda one: one.step, rank=2),
    Column("prompt", 16, lambda one: (clean(one.row.prompt), ""), lambda one: one.row.prompt),
    Column("", BIG_BAR, _glyphs, rank=6),
    *(_size(field) for field, _, _ in PARTS),
    Column(
        "longest", 7, lambda one: (count(one.row.longest) if one.row.longest else "", ""),
        lambda one: one.row.longest, right=True, rank=1, falling=True,
    ),
)  # fmt: skip


def members(group: Group, filter: str = "") -> list[Member]:
    word = filter.casefold()
    return [one for one in group.members if word in f"{one.index} {one.state} {one.worker}".casefold()]


def _last(member: Member) -> Cell:
    return (age(member.story[-1].ago_s), "") if member.story else (UNKNOWN, "dim")


MEMBERS: tuple[Column[Member], ...] = (
    Column("#", 4, lambda one: (str(one.index), ""), lambda one: one.index, right=True),
    Column("state", 10, lambda one: (one.state, COLOURS.get(one.state, "")), lambda one: one.state),
    Column("since", 6, _last, lambda one: one.story[-1].ago_s if one.story else 0.0, right=True, rank=2),
    Column("tokens", 7, lambda one: (count(one.tokens), ""), lambda one: one.tokens, right=True, rank=1),
    Column(
        "reward", 8, lambda one: (UNKNOWN, "dim") if one.reward is None else (number(one.reward), ""),
        lambda one: -1e30 if one.reward is None else one.reward, right=True, rank=3, falling=True,
    ),
    Column("worker", 12, lambda one: (clean(one.worker) or UNKNOWN, ""), lambda one: one.worker, rank=4, most=28),
)  # fmt: skip


def story_lines(member: Member, width: int, height: int) -> list[Text]:
    """What has happened to a sample, the newest first."""
    lines = [Text(f"story of sample {member.index}", style="bold dim", no_wrap=True)]
    for moment in reversed(member.story):
        text = Text(no_wrap=True)
        text.append(fill(f"{age(moment.ago_s)} ago", 11, right=True), style="dim")
        text.append(f"  {fill(moment.event, 16)}")
        text.append(cut(clean(moment.who), max(0, width - text.cell_len)), style="dim")
        lines.append(text)
    return lines[:height]
