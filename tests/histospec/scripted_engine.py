"""An engine for tests of the drafter: it follows scripts and accepts the drafts that agree with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rhymed.histospec.drafter import Drafter
from rhymed.histospec.drafts.requests import Continued, RequestInfo
from rhymed.histospec.drafts.types import Batch
from rhymed.histospec.index.builder import Builder, PastResponse
from rhymed.histospec.settings import Settings

PROMPT = [5, 6, 7]


class Engine:
    """Accepts the drafted tokens that its script continues with, and makes one more, like a real engine."""

    def __init__(self, **settings: object) -> None:
        self.builder = Builder(1000)
        self.ended: list[tuple[str, list[int]]] = []
        self.seen: list[str] = []
        self.requests: dict[str, RequestInfo] = {}
        self.scripts: dict[str, list[int]] = {}
        self.written: dict[str, list[int]] = {}
        self.stops: np.ndarray[Any, np.dtype[np.int32]] | None = None  # tokens that end a turn
        self.head: Callable[[list[str]], Any] = lambda running: None  # what the engine's own head drafts for these
        self.waiting: set[str] = set()
        self.drafts: dict[str, list[int]] = {}
        self.ran: list[str] = []  # in the last step
        self.forwards = self.skipped = 0  # `skipped`: steps without drafts
        self.drafter = Drafter(
            Settings(**settings),  # type: ignore[arg-type]
            self.builder,
            self.requests.get,
            width=8,
            largest=512,
            on_prompt=lambda info: self.seen.append(info.prompt),
            on_end=lambda info: self.ended.append((info.name, list(info.response))),
        )

    def add(
        self,
        name: str,
        script: list[int],
        prompt: str = "p",
        step: int = 0,
        carried: Any = (),
        prefix: int = 0,
        sample: str = "",
    ) -> None:
        """`prefix`: tokens of the script that earlier turns of the `sample` have."""
        written = self.written[name] = []
        response = Continued(script[:prefix], written) if prefix else written
        self.requests[name] = RequestInfo(
            sample or name, prompt, step, PROMPT, response, carried, prefix, bool(sample)
        )
        self.scripts[name] = script

    def step(self) -> None:
        running = [name for name in self.requests if name not in self.waiting]
        made, verified = [], []
        for name in running:
            info, script = self.requests[name], self.scripts[name]
            drafted = self.drafts.pop(name, [])
            rest = script[len(info.response) :]
            right = 0
            while right < min(len(drafted), len(rest) - 1) and drafted[right] == rest[right]:
                right += 1
            verified.append(len(drafted))
            made.append(rest[: right + 1])
            self.written.setdefault(name, info.response).extend(made[-1])  # type: ignore[arg-type]
            self.forwards += 1
        left = [len(self.scripts[name]) - len(self.requests[name].response) for name in running]
        batch = Batch(
            running,
            made,
            [len(self.requests[name].response) for name in running],
            verified,
            np.array([max(0, one - 1) for one in left], np.int32),
            [row for row, one in enumerate(left) if one == 0],
            running == self.ran,
            stops=self.stops,
            drafted=self.head(running),
        )
        self.ran = running
        if all(left) and self.drafter.skips(running, made):
            self.skipped, self.drafts = self.skipped + 1, {}
        else:
            self.drafts = dict(zip(running, self.drafter.step(batch), strict=True))
        for name, one in zip(running, left, strict=True):
            if one == 0:
                del self.requests[name]

    def finish(self, most: int = 500) -> None:
        while self.requests and most:
            self.step()
            most -= 1
        assert most, "the engine ends"

    def remember(self, *past: list[int], prompt: str = "p") -> None:
        self.builder.submit(prompt, PROMPT, lambda: [PastResponse(np.array(one, np.int32), 0) for one in past])
        brought = threading.Event()
        self.builder.run(brought.set)  # in turn
        assert brought.wait(60)


def words(seed: int, count: int = 60) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(10, 900, count)]
