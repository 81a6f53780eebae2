"""The terminal of `rhymed top`: passes keys and mouse to `keys`, and shows what `screen.paint` returns.

Owns the terminal and one poller; does not know what the screen says. Only changed lines are drawn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from rhymed.core.console import Terminal
from rhymed.core.tasks import watched
from rhymed.core.wire.sockets import Client
from rhymed.show.top.keys import Effect, click, press, wheel
from rhymed.show.top.poller import Poller
from rhymed.show.top.screen import Frame, paint
from rhymed.show.top.state import UiState

TICK_S = 1.0  # between updates of the times on the screen while the broker does not answer
WHEEL = 3  # rows


class ScreenWidget(Widget, can_focus=True):
    """The screen as lines. `frame` is what it shows."""

    DEFAULT_CSS = "ScreenWidget { width: 1fr; height: 1fr; }"

    def __init__(self, ui: UiState, act: Callable[[Effect], None]) -> None:
        super().__init__()
        self._ui, self._act = ui, act
        self._strips: list[Strip] = []
        self._texts: list[Text] = []
        self._pen = Terminal(force_terminal=True, color_system="truecolor", width=1000)
        self.frame = Frame([], [], 1)

    def repaint(self) -> None:
        """Paints, and refreshes the lines that changed."""
        width, height = self.size
        if not width or not height:
            return
        self.frame = paint(self._ui, width, height, time.monotonic())
        before, self._texts = self._texts, self.frame.lines
        strips, self._strips = self._strips, []
        for number, line in enumerate(self._texts):
            same = number < len(strips) and before[number] == line and before[number].style == line.style
            if same and strips[number].cell_length == width:
                self._strips.append(strips[number])
                continue
            style = self._pen.get_style(line.style)  # `render` omits it if no part has a style
            self._strips.append(Strip(Segment.apply_style(line.render(self._pen), style)).adjust_cell_length(width))
            self.refresh(Region(0, number, width, 1))
        if len(self._strips) != len(strips):
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def on_resize(self) -> None:
        self.repaint()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self._act(press(self._ui, event.key, event.character, self.frame.page))
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        name = self.frame.names[event.y] if event.y < len(self.frame.names) else None
        if name is not None:
            self._act(click(self._ui, name))
            self.repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        wheel(self._ui, WHEEL)
        self.repaint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        wheel(self._ui, -WHEEL)
        self.repaint()


class Top(App[None]):
    """`await Top(client, ui).run_async()`; ends when the user quits."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    CSS = "Screen { background: ansi_default; color: ansi_default; overflow: hidden; }"

    def __init__(self, client: Client, ui: UiState, every_s: float = 1.0, folder: Path | None = None) -> None:
        super().__init__(ansi_color=True)
        self.ui = ui
        self.screen_widget = ScreenWidget(ui, self.act)
        self.poller = Poller(client, ui, self.screen_widget.repaint, every_s, folder)
        self._tasks: set[asyncio.Task[None]] = set()

    def compose(self) -> ComposeResult:
        yield self.screen_widget

    def on_mount(self) -> None:
        self.screen_widget.focus()
        self._start(self.poller.run())
        self.set_interval(TICK_S, self._tick)

    def act(self, effect: Effect) -> None:
        if effect == "quit":
            self.exit()
        elif effect == "ask":
            self.poller.ask_now()
        elif effect is not None:
            self._start(self.poller.steer(effect))

    def _tick(self) -> None:
        """Updates how long the broker has not answered."""
        if self.ui.connection.state not in ("live", "finished"):
            self.screen_widget.repaint()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        watched(work, self._handle_exception, self._tasks)  # type: ignore[arg-type]

    async def on_unmount(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
