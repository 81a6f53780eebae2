"""Turns the moves of samples into finished spans. Pure: what happened and when comes in, spans go out.

A step is a span without parent; each traced sample of it is a span below that, and each state that the sample was in
one below the sample. A span is handed out once, when it is over: a state's at the move out of it, a sample's when it
is trained or dropped, a step's when it is closed. Steps that are set back leave no span; they are opened again. Knows
no OpenTelemetry, and keeps nothing of samples that are not traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rhymed.messages import EVAL
from rhymed_broker.states import NEXT, Event, Sample
from rhymed_broker.telemetry.ids import is_traced, phase_span_id, span_id, step_span_id, trace_id

Value = str | int | float | bool

DROPS: frozenset[Event] = frozenset({"dropped", "found_dropped"})
ENDS: frozenset[Event] = DROPS | {"trained"}
BIRTHS: frozenset[Event] = frozenset(NEXT["new"])


@dataclass(frozen=True, slots=True)
class Span:
    """One that is over. Ids are hex digits, times unix nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str  # empty: none
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    error: str = ""  # why it did not end well


@dataclass(slots=True)
class _Life:
    """A traced sample that is not over."""

    began: int
    state: str
    since: int
    worker: str


@dataclass(slots=True)
class _Step:
    began: int
    latest: int
    samples: int = 0
    dropped: int = 0
    trained: int = 0


class Recorder:
    """A `Watcher`."""

    def __init__(self, run: str, emit: Callable[[Span], None], *, ratio: float = 1.0, epoch_ns: int = 0) -> None:
        """`epoch_ns`: unix time at zero of the clock that moves are told in (seconds)."""
        self._run = run
        self._emit = emit
        self._ratio = ratio
        self._epoch_ns = epoch_ns
        self._steps: dict[int, _Step] = {}
        self._lives: dict[int, dict[Sample, _Life]] = {}  # step -> its traced samples

    def moved(self, samples: Sequence[Sample], event: Event, now: float, who: str) -> None:
        at = self._epoch_ns + int(now * 1e9)
        for sample in samples:
            step = self._steps.get(sample.id.step)
            if step is None:
                step = self._steps[sample.id.step] = _Step(at, at)
            step.latest = at
            step.samples += event in BIRTHS
            step.dropped += event in DROPS
            step.trained += event == "trained"
            self._sample(sample, event, at, who)

    def _sample(self, sample: Sample, event: Event, at: int, who: str) -> None:
        lives = self._lives.setdefault(sample.id.step, {})
        life = lives.get(sample)
        if life is None:
            if event in BIRTHS:
                self._begin(lives, sample, event, at, who)
            return
        self._phase(sample, life, event, at, who)
        if event in ENDS:
            del lives[sample]
            self._end(sample, life, event, at, who)
        else:
            life.state, life.since, life.worker = sample.state, at, who

    def _begin(self, lives: dict[Sample, _Life], sample: Sample, event: Event, at: int, who: str) -> None:
        if not is_traced(self._run, sample.id, self._ratio):
            return
        life = _Life(at, sample.state, at, "")
        if event in ENDS:
            self._end(sample, life, event, at, who)
        else:
            lives[sample] = life

    def _phase(self, sample: Sample, life: _Life, event: Event | Literal["graded"], at: int, who: str) -> None:
        """The state that it was in until now."""
        step, state = sample.id.step, life.state
        attributes = _identity(sample) | {"rhymed.event": event}
        if life.worker and state in ("running", "scoring", "training"):
            attributes["rhymed.worker"] = life.worker
        if state == "running" and event == "generated":
            attributes |= {"rhymed.tokens": sample.length, "rhymed.version": sample.oldest}
        if state == "scoring" and event == "scored" and sample.reward is not None:
            attributes["rhymed.reward"] = sample.reward
        error = who or event if event in ("returned", "dropped") else ""
        id, parent = phase_span_id(self._run, sample.id, state, life.since), span_id(self._run, sample.id)
        self._emit(Span(state, trace_id(self._run, step), id, parent, life.since, at, attributes, error))

    def _end(self, sample: Sample, life: _Life, event: Event | Literal["graded"], at: int, who: str) -> None:
        step = sample.id.step
        attributes = _identity(sample) | {"rhymed.event": event, "rhymed.tokens": sample.length}
        attributes |= {"rhymed.version": sample.oldest, "rhymed.retries": sample.failures}
        if sample.reward is not None:
            attributes["rhymed.reward"] = sample.reward
        error = (who or "dropped") if event in DROPS else ""
        trace, parent = trace_id(self._run, step), step_span_id(self._run, step)
        self._emit(Span("sample", trace, span_id(self._run, sample.id), parent, life.began, at, attributes, error))

    def closed(self, step: int) -> None:
        """Samples of an evaluation end here: they are not trained."""
        kept = self._steps.pop(step, None)
        lives = self._lives.pop(step, {})
        if kept is None:
            return
        for sample, life in lives.items():
            self._phase(sample, life, "graded", kept.latest, "")
            self._end(sample, life, "graded", kept.latest, "")
        counts: dict[str, Value] = {
            "rhymed.samples": kept.samples,
            "rhymed.dropped": kept.dropped,
            "rhymed.trained": kept.trained,
        }
        name, number = _named(step)
        attributes = {"rhymed.run": self._run, f"rhymed.{name}": number, **counts}
        trace, id = trace_id(self._run, step), step_span_id(self._run, step)
        self._emit(Span(f"{name} {number}", trace, id, "", kept.began, kept.latest, attributes))

    def rolled_back(self) -> None:
        self._steps.clear()
        self._lives.clear()


def _named(step: int) -> tuple[str, int]:
    return ("evaluation", step - EVAL) if step >= EVAL else ("step", step)


def _identity(sample: Sample) -> dict[str, Value]:
    id = sample.id
    name, number = _named(id.step)
    return {"rhymed.sample": str(id), f"rhymed.{name}": number, "rhymed.prompt": id.prompt, "rhymed.index": id.index}
