"""What vLLM's worker process does, second by second, told through a few bytes of shared memory.

The worker process writes whenever its activity changes, a few times a step; whoever started the engine reads, when
it likes, without a word to the engine. Written are the seconds of all activities and since when the present one
lasts, so a reader is exact up to its own now: both processes have the same monotonic clock. A record that is read
while it is written does not add up, and is read again.

A step is `prefill` when it holds a token of a prompt, or one that has to be read again; else `verify` when it checks
drafted tokens; else `decode`. It lasts until the next one begins, so scheduling is part of it. The engine's last step
before it rests holds no token. This module names what it wraps of vLLM's model runner; one that it does not know is
left alone, and nothing is ever written: then an engine with a request counts as decoding.
"""

from __future__ import annotations

import functools
import logging
import math
import mmap
import os
import struct
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rhymed.service.stopwatch import Seconds

log = logging.getLogger(__name__)

PULSE = "RHYMED_ENGINE_PULSE"
"""Environment variable with the path of the shared file."""
BUSY = ("prefill", "decode", "verify", "draft")
KINDS = ("idle", *BUSY)
RECORD = struct.Struct(f"={len(KINDS) + 3}d")  # begun, seconds of each kind, number of the present kind, since when
TRIES = 20


class Pulse:
    """The reader's end: makes the file, and takes it away."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        descriptor, name = tempfile.mkstemp(prefix=f"rhymed-pulse-{os.getpid()}-", dir=folder)
        try:
            os.ftruncate(descriptor, RECORD.size)
            self._map = mmap.mmap(descriptor, RECORD.size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.path = Path(name)
        self._last: dict[str, float] = {}
        self._own = Seconds("idle")

    def working(self) -> AbstractContextManager[None]:
        """A request is in the engine within the block: all that is known where the other end does not write."""
        return self._own.during("decode")

    def seconds(self) -> dict[str, float]:
        """Busy seconds by activity up to now."""
        told = self._read()
        return {"decode": self._own.read().get("decode", 0.0)} if told is None else told

    def _read(self) -> dict[str, float] | None:
        """None while nothing has been written."""
        for _ in range(TRIES):
            begun, *seconds, kind, since = RECORD.unpack(self._map[:])
            if not since:
                return None
            if math.isclose(begun + sum(seconds), since, rel_tol=0, abs_tol=1e-3) and 0 <= kind < len(KINDS):
                seconds[int(kind)] += max(0.0, time.monotonic() - since)
                if not self._last:
                    self.close()  # both ends have it open: should we be killed, nothing is left behind
                self._last = dict(zip(KINDS[1:], seconds[1:], strict=True))
                break
        return self._last

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


class Beat:
    """The writer's end, in vLLM's worker process: the file that the environment names, written by one process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD.size)
        self._begun = self._since = time.monotonic()
        self._seconds = [0.0] * len(KINDS)
        self._kind = 0
        self._write()

    def enter(self, kind: int) -> int:
        """From now on it is this, a place in `KINDS`; what it was before."""
        now, before = time.monotonic(), self._kind
        self._seconds[before] += now - self._since
        self._kind, self._since = kind, now
        self._write()
        return before

    def _write(self) -> None:
        self._map[:] = RECORD.pack(self._begun, *self._seconds, self._kind, self._since)


def kind_of(step: Any) -> int:
    """Of vLLM's `SchedulerOutput`: what a step with these tokens does, a place in `KINDS`."""
    tokens = step.total_num_scheduled_tokens
    if not tokens:
        return KINDS.index("idle")
    drafted = sum(map(len, step.scheduled_spec_decode_tokens.values()))
    if tokens > len(step.num_scheduled_tokens) + drafted:
        return KINDS.index("prefill")
    return KINDS.index("verify" if drafted else "decode")


def install() -> bool:
    """Once a process, before its model runner runs. False: nobody listens, or this vLLM's runner is another one."""
    path = os.environ.get(PULSE, "")
    if not path:
        return False
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    run, draft = (
        getattr(GPUModelRunner, "execute_model", None),
        getattr(GPUModelRunner, "propose_draft_token_ids", None),
    )
    if run is None or draft is None:
        log.warning("vLLM's GPUModelRunner is not the one that is known: what its steps do is not counted")
        return False
    if not hasattr(run, "rhymed"):
        beats = _Beats(Path(path))
        GPUModelRunner.execute_model = _counting(run, beats)
        GPUModelRunner.propose_draft_token_ids = _drafting(draft, beats)
    return True


class _Beats:
    """Of the one runner whose steps are counted: of several ranks, the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beat: Beat | None = None

    def of(self, runner: Any) -> Beat | None:
        if self._beat is None and not runner.parallel_config.rank:
            self._beat = Beat(self._path)
        return self._beat


def _counting(original: Any, beats: _Beats) -> Any:
    @functools.wraps(original)
    def execute_model(runner: Any, step: Any, *arguments: Any, **named: Any) -> Any:
        beat = beats.of(runner)
        if beat is not None:
            beat.enter(kind_of(step))
        return original(runner, step, *arguments, **named)

    execute_model.rhymed = True  # type: ignore[attr-defined]
    return execute_model


def _drafting(original: Any, beats: _Beats) -> Any:
    drafting = KINDS.index("draft")

    @functools.wraps(original)
    def propose_draft_token_ids(runner: Any, *arguments: Any, **named: Any) -> Any:
        beat = beats.of(runner)
        if beat is None:
            return original(runner, *arguments, **named)
        before = beat.enter(drafting)
        try:
            return original(runner, *arguments, **named)
        finally:
            beat.enter(before)

    return propose_draft_token_ids
