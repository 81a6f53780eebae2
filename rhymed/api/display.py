"""Where a run's progress is shown while a program waits for it: a terminal, a notebook, or nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from rhymed.config.load import load_run
from rhymed.launch.events import AnyEvent, Closing, Line, Notice, Snapshot, Started
from rhymed.launch.screen import Screen
from rhymed.output import show
from rhymed.run.layout import layout_of


class Display(Protocol):
    def handle(self, event: AnyEvent) -> None: ...
    def tick(self) -> None:
        """Time has passed without an event."""

    def close(self) -> None:
        """No event follows."""


def choose(progress: bool | None) -> Display:
    """None: a notebook's cell or the terminal, whichever there is; True: the same; False: nothing."""
    if progress is False:
        return Silent()
    if in_notebook():
        from rhymed.api.notebook import Notebook

        return Notebook()
    return Terminal()


def in_notebook() -> bool:
    """Whether IPython with a kernel runs this code."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class Silent:
    def handle(self, event: AnyEvent) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class Terminal:
    """As `rhymed run` shows it: updated in place on a terminal, else one line per step."""

    def __init__(self) -> None:
        self._screen: Screen | None = None

    def handle(self, event: AnyEvent) -> None:
        if isinstance(event, Started):
            config = load_run(Path(event.folder))
            plain = not (sys.stdout and sys.stdout.isatty())
            self._screen = Screen(config, layout_of(config), plain=plain).__enter__()
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

    def tick(self) -> None:
        pass

    def close(self) -> None:
        if self._screen is not None:
            self._screen.__exit__(None, None, None)
