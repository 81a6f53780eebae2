"""Where a run's progress is shown while a program waits for it: a terminal, a notebook, or nowhere.

`Terminal` and `Notebook` are two, `Display` alone is the third; `Progress` is the content in a notebook.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rhymed.core.config.load import load_run
from rhymed.core.messages import Queues
from rhymed.core.output import show
from rhymed.core.run import timeline as records
from rhymed.core.run.layout import layout_of
from rhymed.core.text import STEP_COLUMNS, clock, evaluation_lines
from rhymed.show.dashboard import listen
from rhymed.start.launch.events import AnyEvent, Closing, Failed, Line, Notice, Snapshot, Started
from rhymed.start.launch.screen import Screen, phases


class Display:
    """Shows nothing: what the others are made of."""

    def handle(self, event: AnyEvent) -> None:
        pass

    def tick(self) -> None:
        """Time has passed without an event."""

    def close(self) -> None:
        """No event follows."""


def choose(progress: bool | None) -> Display:
    """None: a notebook's cell or the terminal, whichever there is; True: the same; False: nothing."""
    if progress is False:
        return Display()
    if in_notebook():
        return Notebook()
    return Terminal()


def in_notebook() -> bool:
    """Whether IPython with a kernel runs this code."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class Terminal(Display):
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

    def close(self) -> None:
        if self._screen is not None:
            self._screen.__exit__(None, None, None)


# A run's progress in a notebook: one output of a cell, which is replaced as the run proceeds.
#
# `page` is pure. Colours follow the notebook's theme. Needs IPython only where something is shown.

EVERY_S = 0.5  # between updates
NOTICES = 4  # shown
WIDTH, HEIGHT = 420, 72  # of the curve, in pixels
BOX = "font:13px/1.6 ui-monospace,monospace;max-width:60em"
CELL = "text-align:right;padding:0 1em 0 0;border:0"


@dataclass
class Progress:
    """What is known of the run so far."""

    folder: Path | None = None
    dashboard: str = ""
    phase: str = "checking model, data and rewards"
    queues: Queues | None = None
    rewards: list[float] = field(default_factory=list)  # per step
    left: str = ""  # `about 12 min left`
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=NOTICES))
    lines: list[str] = field(default_factory=list)  # before the start, and after the end
    over: bool = False

    def see(self, queues: Queues, left: str = "") -> None:
        before = self.queues.step if self.queues else 0
        self.queues, self.left = queues, left
        if not self.over:
            self.phase = (
                ""
                if queues.step
                else phases([row for row in queues.workers if row.role in ("rollout", "trainer")], [])
            )
        if queues.step > before and "reward/mean" in queues.metrics:
            self.rewards.append(queues.metrics["reward/mean"])


def page(progress: Progress, elapsed_s: float) -> str:
    """HTML."""
    queues = progress.queues
    name = queues.run if queues else progress.folder.name if progress.folder else "rhymed"
    head = [f"<b>{escape(name)}</b>", *([f"step {queues.step}/{queues.steps}"] if queues else []), clock(elapsed_s)]
    head += [progress.left] if progress.left and not progress.over else []
    head += [escape(progress.phase)] if progress.phase else []
    if progress.dashboard and not progress.over:
        head.append(f'<a href="{escape(progress.dashboard)}" target="_blank">dashboard</a>')
    parts = [" · ".join(head)]
    if queues is not None:
        parts.append(_bar(queues.step / max(1, queues.steps)))
        parts.append(_table(queues.metrics))
        parts += [escape(f"eval {line}") for line in evaluation_lines(queues.val)]
        parts += [f'<span style="color:#c33">waits: {escape(trouble)}</span>' for trouble in queues.troubles]
    if len(progress.rewards) > 1:
        parts.append(_curve(progress.rewards))
    parts += [f'<span style="color:#b70">{escape(notice)}</span>' for notice in progress.notices]
    if text := "\n".join(progress.lines).strip():
        parts.append(f'<pre style="margin:.5em 0;font:inherit;white-space:pre-wrap">{escape(text)}</pre>')
    return f'<div style="{BOX}">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def plain(progress: Progress) -> str:
    """For a front end that shows no HTML."""
    queues = progress.queues
    return f"{queues.run}: step {queues.step}/{queues.steps}" if queues else progress.phase


def _bar(share: float) -> str:
    fill = f'<div style="width:{share:.1%};height:6px;background:#2a7de1;border-radius:3px"></div>'
    return f'<div style="background:rgba(128,128,128,.25);border-radius:3px;margin:.3em 0">{fill}</div>'


def _table(metrics: dict[str, float]) -> str:
    shown = [(name, form.format(metrics[key])) for key, name, form in STEP_COLUMNS if key in metrics]
    if not shown:
        return ""
    names = "".join(f'<td style="{CELL};opacity:.65">{escape(name)}</td>' for name, _ in shown)
    values = "".join(f'<td style="{CELL}">{escape(value)}</td>' for _, value in shown)
    return f'<table style="border:0;margin:0;font:inherit"><tr>{names}</tr><tr>{values}</tr></table>'


def _curve(rewards: list[float]) -> str:
    low, high = min(rewards), max(rewards)
    spread, last = (high - low) or 1.0, len(rewards) - 1
    points = " ".join(
        f"{WIDTH * number / last:.1f},{HEIGHT - 4 - (HEIGHT - 8) * (reward - low) / spread:.1f}"
        for number, reward in enumerate(rewards)
    )
    line = f'<polyline points="{points}" fill="none" stroke="#2a7de1" stroke-width="2"/>'
    scale = f'<span style="opacity:.65"> reward, from {low:.3f} to {high:.3f}</span>'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="reward per step">{line}</svg><br>{scale}'


class Notebook(Display):
    """A display that owns one output of the cell that is running."""

    def __init__(self) -> None:
        self._progress, self._started, self._updated = Progress(), time.monotonic(), 0.0
        self._began, self._records = time.time(), records.Progress()
        self._handle: Any = self._ipython().display(self._bundle(), raw=True, display_id=True)

    def handle(self, event: AnyEvent) -> None:
        progress = self._progress
        if isinstance(event, Started):
            progress.folder, progress.phase = Path(event.folder), "starting"
            progress.lines = [line for line in progress.lines if line.startswith("warning")]
        elif isinstance(event, Line):
            progress.lines.append(event.text)
        elif isinstance(event, Notice):
            progress.notices.append(f"{clock(self._elapsed())} {event.text}")
        elif isinstance(event, Closing):
            progress.phase, progress.over = "finished" if event.finished else "stopped", True
        elif isinstance(event, Failed):
            progress.phase, progress.over = "failed", True
        elif isinstance(event, Snapshot) and event.queues is not None:
            progress.see(event.queues, self._left(event.queues))
        if time.monotonic() - self._updated > EVERY_S:
            self._update()

    def _left(self, queues: Queues) -> str:
        if self._progress.folder is None:
            return ""
        self._records.read(self._progress.folder)
        return self._records.times(None if queues.paused else queues.steps, time.time()).left

    def tick(self) -> None:
        self._update()

    def close(self) -> None:
        self._update()

    def _update(self) -> None:
        self._updated = time.monotonic()
        if not self._progress.dashboard and self._progress.folder is not None:
            address = listen.read(self._progress.folder, self._began)
            self._progress.dashboard = address.url if address else ""
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        return {"text/html": page(self._progress, self._elapsed()), "text/plain": plain(self._progress)}

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    @staticmethod
    def _ipython() -> Any:
        from IPython import display

        return display
