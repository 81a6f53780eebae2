"""The ids under which a run's traces are found: pure functions, so logs can carry them without knowing any trace.

A trace is the life of a step: its samples are spans of it, and what happened to a sample are spans of that. Ids stay
the same over a restart of any process. Knows no OpenTelemetry.
"""

from __future__ import annotations

import hashlib

from rhymed.messages import SampleId


def trace_id(run: str, step: int) -> str:
    """32 hex digits: the trace that the samples of this step are in; `run` is its name."""
    return _hash(16, run, step)


def span_id(run: str, id: SampleId) -> str:
    """16 hex digits: the sample's span in the trace of its step."""
    return _hash(8, run, id)


def step_span_id(run: str, step: int) -> str:
    """16 hex digits: the root of the step's trace."""
    return _hash(8, run, step)


def phase_span_id(run: str, id: SampleId, state: str, start_ns: int) -> str:
    """16 hex digits: the sample's being in that state from then on."""
    return _hash(8, run, id, state, start_ns)


def is_traced(run: str, id: SampleId, ratio: float) -> bool:
    """Whether the sample is among the `ratio` of all that are traced: always the same ones, and more with more."""
    return int(_hash(8, run, id, "traced"), 16) < ratio * 2**64


def _hash(size: int, *parts: object) -> str:
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size, person=b"rhymed").hexdigest()
