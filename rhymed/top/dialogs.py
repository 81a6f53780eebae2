"""A box in the middle of the screen: the keys, or a question. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from rhymed.top.state import Question
from rhymed.top.text import fill

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
