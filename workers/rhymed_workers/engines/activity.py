"""What vLLM's worker process is doing, counted in seconds and shared through a few bytes of memory.

The worker process writes at every change of activity, a few times per step; the process that started the engine reads
at any time without a request to the engine. A record has the seconds of all activities and the start of the present
one, so a reading is exact up to the reader's own clock: both processes have the same monotonic clock. A record that
is read while it is written does not add up, and is read again.

A step is `prefill` if it computes tokens of a prompt, or tokens that have to be computed again; else `verify` if it
checks drafted tokens; else `decode`. It lasts until the next step starts, so scheduling is part of it. The engine's
last step before it rests has no token. vLLM's second model runner drafts on the device, within its steps. This module
names the methods of vLLM's model runners that it wraps; an unknown runner is left alone and nothing is written: then
an engine with a request counts as decoding.
"""

from __future__ import annotations

import functools
import logging
import math
import mmap
import os
import struct
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rhymed.core.private import MemoryFile
from rhymed.core.service.stopwatch import Stopwatch
from rhymed.histospec.plugin import runner_v2_class

log = logging.getLogger(__name__)

ACTIVITY_FILE = "RHYMED_ENGINE_ACTIVITY"
"""Environment variable with the path of the shared file."""
BUSY = ("prefill", "decode", "verify", "draft")
KINDS = ("idle", *BUSY)
RECORD = struct.Struct(f"={len(KINDS) + 3}d")  # start, seconds of each kind, index of the present kind, since when
TRIES = 20


class ActivityReader:
    """Creates the shared record."""

    def __init__(self) -> None:
        self._file = MemoryFile("engine-activity", bytes(RECORD.size))
        self._map = mmap.mmap(self._file.descriptor, RECORD.size, prot=mmap.PROT_READ)
        self.path = self._file.path
        self._last: dict[str, float] = {}
        self._own = Stopwatch("idle")

    def working(self) -> AbstractContextManager[None]:
        """A request is in the engine within the block. Counts only if the worker process does not write."""
        return self._own.during("decode")

    def seconds(self) -> dict[str, float]:
        """Busy seconds by activity up to now."""
        seconds = self._read()
        return {"decode": self._own.read().get("decode", 0.0)} if seconds is None else seconds

    def _read(self) -> dict[str, float] | None:
        """None before the first write."""
        for _ in range(TRIES):
            start, *seconds, kind, since = RECORD.unpack(self._map[:])
            if not since:
                return None
            if math.isclose(start + sum(seconds), since, rel_tol=0, abs_tol=1e-3) and 0 <= kind < len(KINDS):
                seconds[int(kind)] += max(0.0, time.monotonic() - since)
                self._last = dict(zip(KINDS[1:], seconds[1:], strict=True))
                break
        return self._last

    def close(self) -> None:
        self._file.close()


class ActivityWriter:
    """In vLLM's worker process. Only one process may write a file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD.size)
        self._start = self._since = time.monotonic()
        self._seconds = [0.0] * len(KINDS)
        self._kind = 0
        self._write()

    def enter(self, kind: int) -> int:
        """The present activity, an index into `KINDS`. Returns the one before."""
        now, before = time.monotonic(), self._kind
        self._seconds[before] += now - self._since
        self._kind, self._since = kind, now
        self._write()
        return before

    def _write(self) -> None:
        self._map[:] = RECORD.pack(self._start, *self._seconds, self._kind, self._since)


def kind_of(step: Any) -> int:
    """Activity of a step, an index into `KINDS`. `step`: vLLM's `SchedulerOutput`."""
    tokens = step.total_num_scheduled_tokens
    if not tokens:
        return KINDS.index("idle")
    drafted = sum(map(len, step.scheduled_spec_decode_tokens.values()))
    if tokens > len(step.num_scheduled_tokens) + drafted:
        return KINDS.index("prefill")
    return KINDS.index("verify" if drafted else "decode")


def install() -> bool:
    """Once per process, before its model runner runs. False: there is no reader, or the model runner is unknown."""
    path = os.environ.get(ACTIVITY_FILE, "")
    if not path:
        return False
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    run = getattr(GPUModelRunner, "execute_model", None)
    draft = getattr(GPUModelRunner, "propose_draft_token_ids", None)
    if run is None or draft is None:
        log.warning("this version of vLLM's GPUModelRunner is unknown: the engine's activities are not counted")
        return False
    rank_zero = _RankZero(Path(path))
    if not hasattr(run, "rhymed"):
        GPUModelRunner.execute_model = _counting_steps(run, rank_zero)
        GPUModelRunner.propose_draft_token_ids = _counting_drafts(draft, rank_zero)
    v2 = runner_v2_class()
    if v2 is not None and not hasattr(v2.execute_model, "rhymed"):
        v2.execute_model = _counting_steps(v2.execute_model, rank_zero)
    return True


class _RankZero:
    """Only the first of several ranks writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: ActivityWriter | None = None

    def of(self, runner: Any) -> ActivityWriter | None:
        if self._writer is None and not runner.parallel_config.rank:
            self._writer = ActivityWriter(self._path)
        return self._writer


def _counting_steps(original: Any, rank_zero: _RankZero) -> Any:
    @functools.wraps(original)
    def execute_model(runner: Any, step: Any, *arguments: Any, **named: Any) -> Any:
        writer = None if named.get("dummy_run") else rank_zero.of(runner)
        if writer is not None:
            writer.enter(kind_of(step))
        return original(runner, step, *arguments, **named)

    execute_model.rhymed = True  # type: ignore[attr-defined]
    return execute_model


def _counting_drafts(original: Any, rank_zero: _RankZero) -> Any:
    drafting = KINDS.index("draft")

    @functools.wraps(original)
    def propose_draft_token_ids(runner: Any, *arguments: Any, **named: Any) -> Any:
        writer = rank_zero.of(runner)
        if writer is None:
            return original(runner, *arguments, **named)
        before = writer.enter(drafting)
        try:
            return original(runner, *arguments, **named)
        finally:
            writer.enter(before)

    return propose_draft_token_ids
