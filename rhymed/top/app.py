"""The terminal of `rhymed top`: keys, mouse and size go to `control`, what `paint` makes goes to the screen.

Owns the terminal and one poller, knows nothing of what the picture says. Only lines that have changed are sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import ClassVar

from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from rhymed.top.keys import Effect, click, press, wheel
from rhymed.top.poller import Poller
from rhymed.top.screen import Frame, paint
from rhymed.top.state import Look
from rhymed.wire.sockets import Client

TICK_S = 1.0  # how often the times on the screen go on while nobody answers
WHEEL = 3  # rows

Clock = Callable[[], float]


class Board(Widget, can_focus=True):
    """The screen as lines. `frame` is what is on it."""

    DEFAULT_CSS = "Board { width: 1fr; height: 1fr; }"

    def __init__(self, look: Look, act: Callable[[Effect], None], clock: Clock) -> None:
        super().__init__()
        self._look, self._act, self._clock = look, act, clock
        self._strips: list[Strip] = []
        self._texts: list[Text] = []
        self._pen = Console(force_terminal=True, color_system="truecolor", width=1000)
        self.frame = Frame([], [], 1)

    def renew(self) -> None:
        """Paint, and have what has changed shown."""
        width, height = self.size
        if not width or not height:
            return
        self.frame = paint(self._look, width, height, self._clock())
        before, self._texts = self._texts, self.frame.lines
        strips, self._strips = self._strips, []
        for number, line in enumerate(self._texts):
            same = number < len(strips) and before[number] == line and before[number].style == line.style
            if same and strips[number].cell_length == width:
                self._strips.append(strips[number])
                continue
            style = self._pen.get_style(line.style)  # `render` leaves it out where no part has one of its own
            self._strips.append(Strip(Segment.apply_style(line.render(self._pen), style)).adjust_cell_length(width))
            self.refresh(Region(0, number, width, 1))
        if len(self._strips) != len(strips):
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def on_resize(self) -> None:
        self.renew()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self._act(press(self._look, event.key, event.character, self.frame.page))
        self.renew()

    def on_click(self, event: events.Click) -> None:
        name = self.frame.names[event.y] if event.y < len(self.frame.names) else None
        if name is not None:
            self._act(click(self._look, name))
            self.renew()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        wheel(self._look, WHEEL)
        self.renew()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        wheel(self._look, -WHEEL)
        self.renew()


class Top(App[None]):
    """`await Top(client, look).run_async()`; ends when the person at the keys wants it to."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    CSS = "Screen { background: ansi_default; color: ansi_default; overflow: hidden; }"

    def __init__(self, client: Client, look: Look, every_s: float = 1.0, clock: Clock = time.monotonic) -> None:
        super().__init__(ansi_color=True)
        self.look = look
        self.board = Board(look, self.act, clock)
        self.poller = Poller(client, look, self.board.renew, every_s)
        self._errands: set[asyncio.Task[None]] = set()

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self.board.focus()
        self._start(self.poller.run())
        self.set_interval(TICK_S, self._tick)

    def act(self, effect: Effect) -> None:
        """What a key wants of us."""
        if effect == "quit":
            self.exit()
        elif effect == "ask":
            self.poller.soon()
        elif effect is not None:
            self._start(self.poller.steer(effect))

    def _tick(self) -> None:
        """While nobody answers, how long that has been so goes on."""
        if self.look.link.state not in ("live", "finished"):
            self.board.renew()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._handle_exception(error)  # type: ignore[arg-type]

    async def on_unmount(self) -> None:
        for task in list(self._errands):
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
