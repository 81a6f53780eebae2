"""A call of a program, from its arrival to its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from rhymed_workers.sessions.chat.answers import Written
from rhymed_workers.sessions.chat.asked import Asked
from rhymed_workers.sessions.record import Tokens


@dataclass(eq=False)
class Call:
    """`digest`: of the request's body. `key`: that its client gave it; empty: none."""

    asked: Asked
    digest: bytes
    key: str
    answer: asyncio.Future[Written]
    prompt: Tokens = field(default_factory=lambda: np.zeros(0, np.uint32))
    turn: int | None = None  # that answers it
    waiting: int = 0  # connections
    delivered: bool = False

    @property
    def refused(self) -> bool:
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None

    @property
    def broken(self) -> bool:
        """Its connection ended before its answer was sent."""
        return not (self.waiting or self.delivered)
