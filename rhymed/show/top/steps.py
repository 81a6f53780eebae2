"""Open steps and their groups as bars, one prompt's samples as rows. Pure.

Every part of a bar has its own glyph as well as its colour, so that it can be read without colours.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from rhymed.core.messages import Group, GroupRow, Member, Queues, StepRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.stragglers import has_environments
from rhymed.core.style import COLOURS, GLYPHS, bar
from rhymed.core.text import age, step_name
from rhymed.show.top.table import UNKNOWN, Cell, Column, count, cut, fill, number

PARTS = (
    ("settled", "settled", "█", "yellow"),
    ("written", "generated", "▓", "blue"),
    ("acting", "acting", "▞", "bright_cyan"),
    ("turned", "turned", "░", "bright_cyan"),
    ("running", "running", "▒", "cyan"),
    ("waiting", "waiting", "·", "grey50"),
)
"""Of a group's bar: field of GroupRow, title, glyph, colour."""
ENVIRONMENTS = ("acting", "turned")
"""Fields that only a run with environments has."""

CELL = 11  # width of a group without its bar: prompt and tokens
GROUP_BAR = 12
NAME = 10  # of a step


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


def group_bar(row: GroupRow, width: int) -> Text:
    """One cell per sample, if there is room."""
    pieces = [(getattr(row, field), glyph, colour) for field, _, glyph, colour in PARTS]
    return bar(pieces, min(width, sum(size for size, _, _ in pieces)))


def group_cell(row: GroupRow, width: int) -> Text:
    """Prompt, bar and tokens; `width`: of the bar."""
    text = Text(f"{line_of(row.prompt)[:4]:<4} ", no_wrap=True)
    text.append_text(group_bar(row, width))
    text.append(" " * (5 + width - text.cell_len))
    text.append(fill(count(row.longest) if row.longest else "", 6, right=True), style="dim")
    return text


def group_lines(queues: Queues, width: int, height: int) -> list[Text]:
    """The groups of the step in flight as small bars, with a legend."""
    step = in_flight(queues)
    if step is None or not step.rows or height < 2 or width < CELL + GROUP_BAR:
        return []
    longest = min(GROUP_BAR, max(sum(getattr(row, field) for field, *_ in PARTS) for row in step.rows))
    across = (width + 1) // (CELL + longest + 1)
    shown = step.rows[: across * (height - 1)]
    lines = [_legend(step.groups - len(shown), with_environments=has_environments(queues))]
    for start in range(0, len(shown), across):
        line = Text(no_wrap=True)
        for row in shown[start : start + across]:
            line.append_text(group_cell(row, longest)).append(" ")
        lines.append(line)
    return lines


def _legend(more: int, *, with_environments: bool) -> Text:
    """`more`: groups that are not shown."""
    text = Text(no_wrap=True)
    text.append(fill("groups", NAME) + " ", style="bold dim")
    for field, title, glyph, colour in PARTS:
        if field in ENVIRONMENTS and not with_environments:
            continue
        text.append(glyph, style=colour)
        text.append(f" {title}  ", style="dim")
    text.append("longest", style="dim")
    if more > 0:
        text.append(f"   and {more:,} more", style="dim")
    return text


def in_flight(queues: Queues) -> StepRow | None:
    """The step trained next, or the first open step if that is not open."""
    rows = sorted(queues.open_steps, key=lambda row: row.step)
    return next((row for row in rows if row.step == queues.version), rows[0] if rows else None)


@dataclass(frozen=True)
class GroupEntry:
    step: int
    row: GroupRow

    @property
    def name(self) -> str:
        return f"{self.step}/{self.row.prompt}"


def group_entries(queues: Queues, filter: str = "") -> list[GroupEntry]:
    open_steps = sorted(queues.open_steps, key=lambda step: step.step)
    entries = [GroupEntry(step.step, row) for step in open_steps for row in step.rows]
    return [
        group for group in entries if filter.casefold() in f"{step_name(group.step)} {group.row.prompt}".casefold()
    ]


def unlisted(queues: Queues) -> int:
    """Number of groups of open steps that the snapshot does not list."""
    return sum(step.groups - len(step.rows) for step in queues.open_steps)


BIG_BAR = 14


def _size(field: str, title: str) -> Column[GroupEntry]:
    def size(group: GroupEntry) -> int:
        return int(getattr(group.row, field))

    return Column(
        title, max(7, len(title)), lambda group: (str(size(group) or ""), ""), size, right=True,
        rank=4 if field == "written" else 3, descending=True,
    )  # fmt: skip


def group_columns(queues: Queues | None) -> tuple[Column[GroupEntry], ...]:
    if queues is not None and has_environments(queues):
        return GROUP_COLUMNS
    return tuple(column for column in GROUP_COLUMNS if column.title not in ENVIRONMENTS)


GROUP_COLUMNS: tuple[Column[GroupEntry], ...] = (
    Column(
        "step", 6, lambda group: (step_name(group.step).removeprefix("step "), ""), lambda group: group.step, rank=2
    ),
    Column("prompt", 16, lambda group: (line_of(group.row.prompt), ""), lambda group: group.row.prompt),
    Column("", BIG_BAR, lambda group: group_bar(group.row, BIG_BAR), rank=6),
    *(_size(field, title) for field, title, *_ in PARTS),
    Column(
        "longest", 7, lambda group: (count(group.row.longest) if group.row.longest else "", ""),
        lambda group: group.row.longest, right=True, rank=1, descending=True,
    ),
)  # fmt: skip


def members(group: Group, filter: str = "") -> list[Member]:
    word = filter.casefold()
    return [
        member for member in group.members if word in f"{member.index + 1} {member.state} {member.worker}".casefold()
    ]


def _last(member: Member) -> Cell:
    return (age(member.story[-1].ago_s), "") if member.story else (UNKNOWN, "dim")


MEMBER_COLUMNS: tuple[Column[Member], ...] = (
    Column("#", 4, lambda member: (str(member.index + 1), ""), lambda member: member.index, right=True),
    Column("state", 10, lambda member: (member.state, COLOURS.get(member.state, "")), lambda member: member.state),
    Column("since", 6, _last, lambda member: member.story[-1].ago_s if member.story else 0.0, right=True, rank=2),
    Column("tokens", 7, lambda member: (count(member.tokens), ""), lambda member: member.tokens, right=True, rank=1),
    Column(
        "reward", 8, lambda member: (UNKNOWN, "dim") if member.reward is None else (number(member.reward), ""),
        lambda member: -1e30 if member.reward is None else member.reward, right=True, rank=3, descending=True,
    ),
    Column(
        "worker", 12, lambda member: (line_of(member.worker) or UNKNOWN, ""), lambda member: member.worker, rank=4,
        max_width=28,
    ),
)  # fmt: skip


def story_lines(member: Member, width: int, height: int) -> list[Text]:
    """The events of a sample, the newest first."""
    lines = [Text(f"history of response {member.index + 1}", style="bold dim", no_wrap=True)]
    for moment in reversed(member.story):
        text = Text(no_wrap=True)
        text.append(fill(f"{age(moment.ago_s)} ago", 11, right=True), style="dim")
        text.append(f"  {fill(moment.event, 16)}")
        text.append(cut(line_of(moment.who), max(0, width - text.cell_len)), style="dim")
        lines.append(text)
    return lines[:height]
