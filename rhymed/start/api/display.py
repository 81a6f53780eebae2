"""Where a run's progress is shown while a program waits for it: on its output, or nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

from rhymed.core.config.load import load_run
from rhymed.core.console import Terminal as Console
from rhymed.core.output import show
from rhymed.core.run.layout import layout_of
from rhymed.start.launch.events import AnyEvent, Closing, Line, Notice, Snapshot, Started
from rhymed.start.launch.screen import Screen


class Display:
    """Shows nothing: what the other is made of."""

    def handle(self, event: AnyEvent) -> None:
        pass

    def close(self) -> None:
        """No event follows."""


def choose(progress: bool | None) -> Display:
    """False: nothing is shown."""
    return Display() if progress is False else Terminal()


class Terminal(Display):
    """As `rhymed run` shows it: updated in place on a terminal, else (in a notebook, too) one line per step."""

    def __init__(self) -> None:
        self._screen: Screen | None = None

    def handle(self, event: AnyEvent) -> None:
        if isinstance(event, Started):
            config = load_run(Path(event.folder))
            plain = not (sys.stdout and sys.stdout.isatty())
            console = Console(force_jupyter=False)  # which would make an output of HTML of each line
            self._screen = Screen(config, layout_of(config), plain=plain, console=console).__enter__()
        elif isinstance(event, Line):
            show(event.text, flush=True)
        elif self._screen is not None:
            if isinstance(event, Snapshot):
                self._screen.show(event.queues)
            elif isinstance(event, Notice):
                self._screen.report(event.text)
            elif isinstance(event, Closing):
                self._screen.closing(event.finished, event.why)
                self.close()

    def close(self) -> None:
        if self._screen is not None:
            self._screen.__exit__(None, None, None)
