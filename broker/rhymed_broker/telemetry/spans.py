"""Turns the moves of samples into finished spans. Pure: events with their times in, spans out.

A step is a root span; each of its traced samples is a span below it, and each state of the sample a span below the
sample. Calls of tools are spans below the state in which the environment answered. Only their seconds are known: they
are laid one after another before the answer. A span is emitted once, at its end: a state's when the sample leaves it,
a sample's when it is trained or dropped, a step's when it is closed. Steps that are rolled back emit no span; they
are opened again. Knows no OpenTelemetry, and stores nothing about samples that are not traced.
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
ENDS: frozenset[Event] = DROPS | {"trained", "filtered", "found_filtered"}
BIRTHS: frozenset[Event] = frozenset(NEXT["new"])


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. Ids are hex digits, times Unix nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str  # empty: none
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    error: str = ""  # why it failed


@dataclass(slots=True)
class _OpenSample:
    """A traced sample that is not finished."""

    began: int
    state: str
    since: int
    worker: str
    turns: int | None  # that the policy wrote; None: unknown, it was in progress when the broker started


@dataclass(slots=True)
class _OpenStep:
    began: int
    latest: int
    samples: int = 0
    dropped: int = 0
    trained: int = 0


class Recorder:
    """A `Watcher`."""

    def __init__(self, run: str, emit: Callable[[Span], None], *, ratio: float = 1.0, epoch_ns: int = 0) -> None:
        """`epoch_ns`: Unix time at zero of the clock of the moves' times (seconds)."""
        self._run = run
        self._emit = emit
        self._ratio = ratio
        self._epoch_ns = epoch_ns
        self._steps: dict[int, _OpenStep] = {}
        self._samples: dict[int, dict[Sample, _OpenSample]] = {}  # step -> its traced samples

    def moved(self, samples: Sequence[Sample], event: Event, now: float, who: str) -> None:
        at = self._epoch_ns + int(now * 1e9)
        for sample in samples:
            step = self._steps.get(sample.id.step)
            if step is None:
                step = self._steps[sample.id.step] = _OpenStep(at, at)
            step.latest = at
            step.samples += event in BIRTHS
            step.dropped += event in DROPS
            step.trained += event == "trained"
            self._sample(sample, event, at, who)

    def _sample(self, sample: Sample, event: Event, at: int, who: str) -> None:
        open_samples = self._samples.setdefault(sample.id.step, {})
        open_sample = open_samples.get(sample)
        if open_sample is None:
            if event in BIRTHS:
                self._begin(open_samples, sample, event, at, who)
            return
        self._phase(sample, open_sample, event, at, who)
        if event in ENDS:
            del open_samples[sample]
            self._end(sample, open_sample, event, at, who)
        else:
            open_sample.state, open_sample.since, open_sample.worker = sample.state, at, who
            if event == "turned" and open_sample.turns is not None:
                open_sample.turns += 1

    def _begin(
        self, open_samples: dict[Sample, _OpenSample], sample: Sample, event: Event, at: int, who: str
    ) -> None:
        if not is_traced(self._run, sample.id, self._ratio):
            return
        open_sample = _OpenSample(at, sample.state, at, "", None if sample.begun else 0)
        if event in ENDS:
            self._end(sample, open_sample, event, at, who)
        else:
            open_samples[sample] = open_sample

    def _phase(
        self, sample: Sample, open_sample: _OpenSample, event: Event | Literal["graded"], at: int, who: str
    ) -> None:
        """Emits the state that ends now."""
        step, state = sample.id.step, open_sample.state
        attributes = _identity(sample) | {"rhymed.event": event}
        if open_sample.worker and state in ("running", "acting", "scoring", "training"):
            attributes["rhymed.worker"] = open_sample.worker
        if open_sample.turns is not None and (state == "acting" or event == "turned"):
            attributes["rhymed.turn"] = open_sample.turns
        if state == "running" and event == "generated":
            attributes |= {"rhymed.tokens": sample.length, "rhymed.version": sample.oldest}
        if state == "scoring" and event == "scored" and sample.reward is not None:
            attributes["rhymed.reward"] = sample.reward
        error = who or event if event in ("returned", "dropped") else ""
        id, parent = phase_span_id(self._run, sample.id, state, open_sample.since), span_id(self._run, sample.id)
        self._emit(Span(state, trace_id(self._run, step), id, parent, open_sample.since, at, attributes, error))
        if state in ("turned", "acting"):
            self._calls(sample, id, open_sample.since, at)

    def _calls(self, sample: Sample, parent: str, since: int, at: int) -> None:
        """Named and described as OpenTelemetry's conventions for tools of agents have it."""
        end, trace = at, trace_id(self._run, sample.id.step)
        for place, call in reversed(list(enumerate(sample.calls))):
            start = max(since, end - int(call.seconds * 1e9))
            attributes = _identity(sample) | {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}
            id = phase_span_id(self._run, sample.id, f"call {place}", since)
            self._emit(Span(f"execute_tool {call.name}", trace, id, parent, start, end, attributes, call.error))
            end = start

    def _end(
        self, sample: Sample, open_sample: _OpenSample, event: Event | Literal["graded"], at: int, who: str
    ) -> None:
        step = sample.id.step
        attributes = _identity(sample) | {"rhymed.event": event, "rhymed.tokens": sample.length}
        attributes |= {"rhymed.version": sample.oldest, "rhymed.retries": sample.failures}
        if sample.reward is not None:
            attributes["rhymed.reward"] = sample.reward
        error = (who or "dropped") if event in DROPS else ""
        trace, parent = trace_id(self._run, step), step_span_id(self._run, step)
        self._emit(
            Span("sample", trace, span_id(self._run, sample.id), parent, open_sample.began, at, attributes, error)
        )

    def closed(self, step: int) -> None:
        """Samples of an evaluation end here, as they are not trained."""
        open_step = self._steps.pop(step, None)
        open_samples = self._samples.pop(step, {})
        if open_step is None:
            return
        for sample, open_sample in open_samples.items():
            self._phase(sample, open_sample, "graded", open_step.latest, "")
            self._end(sample, open_sample, "graded", open_step.latest, "")
        counts: dict[str, Value] = {
            "rhymed.samples": open_step.samples,
            "rhymed.dropped": open_step.dropped,
            "rhymed.trained": open_step.trained,
        }
        name, number = _named(step)
        attributes = {"rhymed.run": self._run, f"rhymed.{name}": number, **counts}
        trace, id = trace_id(self._run, step), step_span_id(self._run, step)
        self._emit(Span(f"{name} {number}", trace, id, "", open_step.began, open_step.latest, attributes))

    def rolled_back(self) -> None:
        self._steps.clear()
        self._samples.clear()


def _named(step: int) -> tuple[str, int]:
    return ("evaluation", step - EVAL) if step >= EVAL else ("step", step)


def _identity(sample: Sample) -> dict[str, Value]:
    id = sample.id
    name, number = _named(id.step)
    return {"rhymed.sample": str(id), f"rhymed.{name}": number, "rhymed.prompt": id.prompt, "rhymed.index": id.index}
