"""How an engine starts one process and learns of its end. The policy, when to start it again, is the supervisor's."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rhymed.placement.plan import Command


class PlaceLost(Exception):
    """The machine on which a process ran is gone, or its engine took the place away: no failure of the process."""


class Running(Protocol):
    """One process, from its start to its end."""

    @property
    def alive(self) -> bool:
        """False once it has ended."""

    async def ended(self) -> int:
        """Its exit status, negative: of a signal; nothing that it started is left then. Raises `PlaceLost`."""

    def terminate(self) -> None:
        """Ask it to end. It hands back what it holds."""

    def kill(self) -> None:
        """End it, and everything that it started and left behind."""

    def last_words(self) -> str:
        """The last line of its output, after its end; empty: it wrote none."""


class Starter(Protocol):
    """An engine of placement."""

    async def start(self, command: Command, output: Path) -> Running:
        """`output`: gets what the process prints, on the machine where it runs. Waits for a place, if it takes one.
        Raises `OSError`, if it cannot be started, and `PlaceLost`."""
