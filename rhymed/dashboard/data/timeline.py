"""The timeline as the page draws it: what `rhymed.run.timeline` reads, with spans joined where there are too many.

Pure apart from reading. Invariant: joined spans have the same seconds by activity, and no gap is closed; frequent
events, such as workers that load a version, do not crowd out those of another kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rhymed.run import timeline
from rhymed.run.timeline import Event, Span
from rhymed.service.activities import HEX

MOST_SPANS = 20_000
MOST_EVENTS = 5_000  # per kind; the newest
MEANS = ("tokens_per_s", "cpu", "ram_gib", "gpu", "gpu_gib", "gpu_celsius")
"""Fields of a span that are means over its seconds."""
GAP_S = 0.5  # a longer gap between a worker's spans is kept


def answer(folder: Path, since: float) -> dict[str, Any]:
    rows = timeline.read(folder, since)
    return {"spans": joined(rows.spans), "events": newest(rows.events), "activities": HEX}


def newest(events: Sequence[Event], most: int = MOST_EVENTS) -> list[Event]:
    """At most `most` of each kind."""
    later: Counter[str] = Counter()
    kept: list[Event] = []
    for event in reversed(events):
        if later[event.event] < most:
            kept.append(event)
        later[event.event] += 1
    return kept[::-1]


def joined(spans: Sequence[Span], most: int = MOST_SPANS) -> list[Span]:
    """About `most` at most, ordered by time."""
    if len(spans) <= most:
        return list(spans)
    together = -(-len(spans) // most)
    return sorted(
        (_join(part) for own in timeline.by_worker(spans).values() for part in _parts(own, together)),
        key=lambda span: span.t,
    )


def _parts(spans: Sequence[Span], together: int) -> Iterator[list[Span]]:
    """Neighbours, at most `together` in a part."""
    part: list[Span] = []
    for span in spans:
        if part and (len(part) == together or span.t - span.s > part[-1].t + GAP_S):
            yield part
            part = []
        part.append(span)
    if part:
        yield part


def _join(part: Sequence[Span]) -> Span:
    last = part[-1]
    seconds = sum(span.s for span in part)
    inside: dict[str, float] = {}
    for span in part:
        for name, own in span.inside.items():
            inside[name] = inside.get(name, 0.0) + own
    return Span(
        t=last.t,
        worker=last.worker,
        role=last.role,
        host=last.host,
        version=last.version,
        s=seconds,
        inside=inside,
        **{name: _mean(part, name) for name in MEANS},
    )


def _mean(part: Sequence[Span], name: str) -> float | None:
    """Of the spans that have this number, each weighted by its length."""
    known = [(value, span.s) for span in part if (value := getattr(span, name)) is not None]
    covered = sum(own for _, own in known)
    return sum(value * own for value, own in known) / covered if covered > 0 else None
