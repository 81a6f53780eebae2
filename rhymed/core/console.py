"""The terminal of every screen: rich's console, through which nothing raw passes.

`make lint` refuses `rich.console.Console` elsewhere, so a new screen cannot forget the gate.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rhymed.core.printable import visible


class Terminal(Console):
    """A `Console` that replaces the characters of texts that would steer the terminal; rich's own codes stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield segment._replace(text=visible(text))
