"""The environments of one process, as `serving` asks them: one for each sample, or the same tools for all."""

from __future__ import annotations

import math
from typing import Any, Protocol

from rhymed.errors import EnvironmentFailed
from rhymed_workers.environment.hosting.runner import TooLate
from rhymed_workers.environment.protocol import Chat, Kind, Open, Step, Stepped
from rhymed_workers.scorers.explain import describe, raised_at


class Host(Protocol):
    """Each knows one convention of its users."""

    kind: Kind
    tools: list[dict[str, Any]]  # schemas
    idempotent: list[str]
    pure: list[str]  # as in `Ready`
    awaits: bool

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        """The chat that the sample begins with, and the names of its tools."""

    async def step(self, request: Step) -> Stepped: ...

    async def close(self, name: str) -> None: ...

    def explain(self, error: BaseException) -> str:
        """Of the user's code, with file and line."""


def number_of(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailed(f"{what} gave the reward {value!r:.80}: a finite number expected")
    return number


def explained(setting: str, error: BaseException, file: str = "") -> str:
    """`file`: the user's."""
    if isinstance(error, EnvironmentFailed):
        return str(error)
    if isinstance(error, TooLate):
        return f"{setting} {error}"
    place = raised_at(error, file) if file else ""
    return f"{setting} raised {describe(error)}{f' ({place})' if place else ''}"
