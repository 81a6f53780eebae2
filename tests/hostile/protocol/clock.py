"""The broker's clock in the hands of a test: time passes only when the test lets it pass.

Without it, a history would depend on the machine's speed, and would not fail again when it is played again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from rhymed_broker.shell import admission

STEP_S = 0.9  # a tick that is later counts as a suspension of the process


class Clock:
    """Stands in for the module `time` in the broker, and for `asyncio` in its liveness."""

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._sleepers: list[asyncio.Future[None]] = []

    def monotonic(self) -> float:
        return self._now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    async def sleep(self, seconds: float) -> None:
        """Until the next tick. What follows a tick is done in one turn of the event loop."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    async def tick(self, seconds: float) -> None:
        """At most `STEP_S`."""
        self._now += seconds
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        await asyncio.sleep(0)


@contextlib.contextmanager
def stopped() -> Iterator[Clock]:
    clock = Clock()
    modules = [module for name, module in list(sys.modules.items()) if _is_shell(name, module)]
    for module in modules:
        module.time = clock  # type: ignore[attr-defined]
    admission.asyncio = SimpleNamespace(sleep=clock.sleep)  # type: ignore[assignment]
    try:
        yield clock
    finally:
        for module in modules:
            module.time = time  # type: ignore[attr-defined]
        admission.asyncio = asyncio  # type: ignore[assignment]


def _is_shell(name: str, module: ModuleType) -> bool:
    return name.startswith("rhymed_broker.") and getattr(module, "time", None) is time
