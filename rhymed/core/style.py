"""How things look on a terminal, in one place: the same state has the same colour on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

ROLES = {"rollout": "▶", "environment": "◆", "reward": "★", "trainer": "▲"}
COLOURS = {
    "waiting": "grey50",
    "running": "cyan",
    "turned": "bright_cyan",
    "acting": "bright_cyan",
    "generated": "blue",
    "scoring": "magenta",
    "scored": "yellow",
    "training": "green",
    "trained": "green",
    "filtered": "grey70",
    "dropped": "red",
}
GLYPHS = {
    "trained": "█",
    "training": "█",
    "scored": "█",
    "scoring": "▓",
    "generated": "▓",
    "acting": "▞",
    "turned": "░",
    "running": "▒",
    "waiting": "·",
    "filtered": "-",
    "dropped": "x",
}
"""State -> glyph in a bar, in the order of its parts."""
SPARKS = "▁▂▃▄▅▆▇█"


def plain_table(*, expand: bool = False) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=expand)


def sparkline(values: list[float]) -> str:
    """One character per value, between the smallest and the largest."""
    low, span = min(values), max(values) - min(values)
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1))] if span else SPARKS[3] for value in values)


def parts(sizes: Sequence[int], width: int) -> list[int]:
    """Cells for each size: they sum to `width`; every part that is not empty gets one if there is room."""
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
    from rich.text import Text

    text = Text(no_wrap=True)
    for (_, glyph, style), cells in zip(pieces, parts([size for size, _, _ in pieces], width), strict=True):
        text.append(glyph * cells, style=style)
    text.append(" " * (width - text.cell_len))
    return text
