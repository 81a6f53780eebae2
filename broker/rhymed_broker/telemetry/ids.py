"""The ids of a run's traces: pure functions, so that logs can carry them without a trace.

A trace is the life of a step: its samples are spans of it, and their states are spans below those. Ids do not change
when a process restarts. Knows no OpenTelemetry.
"""

from __future__ import annotations

import hashlib

from rhymed.messages import SampleId


def trace_id(run: str, step: int) -> str:
    """32 hex digits: the trace of this step's samples; `run` is the run's name."""
    return _hash(16, run, step)


def span_id(run: str, id: SampleId) -> str:
    """16 hex digits: the sample's span in the trace of its step."""
    return _hash(8, run, id)


def step_span_id(run: str, step: int) -> str:
    """16 hex digits: the root of the step's trace."""
    return _hash(8, run, step)


def phase_span_id(run: str, id: SampleId, state: str, start_ns: int) -> str:
    """16 hex digits: the sample's time in that state from `start_ns` on."""
    return _hash(8, run, id, state, start_ns)


def is_traced(run: str, id: SampleId, ratio: float) -> bool:
    """Whether the sample is traced: a deterministic choice, and a larger `ratio` only adds samples."""
    return int(_hash(8, run, id, "traced"), 16) < ratio * 2**64


def _hash(size: int, *parts: object) -> str:
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size, person=b"rhymed").hexdigest()
