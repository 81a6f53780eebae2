"""The broker's metrics of a step; names as in docs/metrics.md. Pure accounting.

`Occupancy` integrates slots over time, `StepMeter` records when what happened to a step, `ToolMeters` counts the
calls of its samples; `rollout_side` and `step_side` turn them into metrics. Knows nothing of transitions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rhymed.core.messages import Call, Score
from rhymed_broker.states import Sample


class Occupancy:
    """Time integrals of all slots and of slots in use. O(1) per change."""

    def __init__(self) -> None:
        self.slots = 0
        self.busy = 0
        self.slot_s = 0.0
        self.busy_s = 0.0
        self._at = 0.0

    def change(self, now: float, slots: int = 0, busy: int = 0) -> None:
        self.read(now)
        self.slots += slots
        self.busy += busy

    def read(self, now: float) -> tuple[float, float]:
        """(slot seconds, busy slot seconds) until now."""
        past = now - self._at if self._at else 0.0
        self._at = now
        self.slot_s += self.slots * past
        self.busy_s += self.busy * past
        return self.slot_s, self.busy_s


@dataclass
class ScorerMeter:
    """One scorer's results in one step."""

    total: float = 0.0  # of its points, before its weight
    count: int = 0
    errors: int = 0
    timeouts: int = 0

    def read(self, label: str) -> dict[str, float]:
        """The mean is over its points, the rates over all samples that it scored or failed to score."""
        asked = max(1, self.count + self.errors)
        mean = {f"reward/{label}/mean": self.total / self.count} if self.count else {}
        return mean | {
            f"reward/{label}/error_rate": self.errors / asked,
            f"reward/{label}/timeout_rate": self.timeouts / asked,
        }


MOST_METRICS = 64  # that scorers may log in one step


class StepMeter:
    """Moments and counts of one open step. Times are the caller's clock; None: not yet."""

    def __init__(self, now: float, slots: tuple[float, float]) -> None:
        self.opened_at = now
        self.slots_opened = slots
        self.generated_at: float | None = None  # when its last sample was generated
        self.slots_generated = slots
        self.complete_at: float | None = None  # when its last group was complete
        self.handed_at: float | None = None  # to the trainer
        self.reports = 0  # scores and scoring errors
        self.errors = 0
        self.timeouts = 0
        self.scorers: defaultdict[str, ScorerMeter] = defaultdict(ScorerMeter)  # by label
        self.metrics: dict[str, tuple[float, int]] = {}  # logged by scorers: name -> (sum, calls)
        self.tools = ToolMeters()
        self.filters: dict[str, float] = {}  # metrics of dynamic sampling; empty without it
        self.rollout: dict[str, float] = {}  # the step's metrics when it was handed over

    def reopen(self) -> None:
        """The step has more samples now."""
        self.generated_at = self.complete_at = None

    def generated(self, now: float, slots: tuple[float, float]) -> None:
        self.generated_at = now
        self.slots_generated = slots

    def report(self, score: Score) -> None:
        self.reports += 1
        self.errors += score.error is not None
        self.timeouts += score.timeout
        for label, value in score.parts.items():
            self.scorers[label].total += value
            self.scorers[label].count += 1
        for name, value in score.metrics.items():
            total, calls = self.metrics.get(name, (0.0, 0))
            if math.isfinite(value) and (calls or len(self.metrics) < MOST_METRICS):
                self.metrics[name] = total + value, calls + 1
        if score.failed:
            self.scorers[score.failed].errors += 1
            self.scorers[score.failed].timeouts += score.timeout

    def scores(self) -> dict[str, float]:
        logged = {f"reward/metric/{name}": total / calls for name, (total, calls) in self.metrics.items()}
        return logged | {
            name: value for label, meter in self.scorers.items() for name, value in meter.read(label).items()
        }

    def bubble_ratio(self) -> float:
        """Idle slot time over slot time, from the step's opening until its last sample was generated."""
        slot_s = self.slots_generated[0] - self.slots_opened[0]
        busy_s = self.slots_generated[1] - self.slots_opened[1]
        return 1.0 - busy_s / slot_s if slot_s > 0 else 0.0


def rollout_side(step: int, meter: StepMeter, total: Sequence[Sample]) -> dict[str, float]:
    """Metrics of a complete step before it is trained."""
    filtered = [sample for sample in total if sample.state == "filtered"]
    usable = [sample for sample in total if sample.state not in ("filtered", "dropped")]
    lengths = [sample.length for sample in usable]
    tokens = sum(sample.learned for sample in (*usable, *filtered))
    ages = [step - sample.oldest for sample in usable]
    drafting = _drafting(usable)
    ahead = _ahead(usable)
    failures, losses = sum(sample.failures for sample in total), sum(sample.losses for sample in total)
    generated_at = meter.generated_at if meter.generated_at is not None else meter.opened_at
    complete_at = meter.complete_at if meter.complete_at is not None else generated_at
    rollout_s = generated_at - meter.opened_at
    return {
        "response_length/mean": _mean(lengths),
        "response_length/max": float(max(lengths, default=0)),
        "response_length/min": float(min(lengths, default=0)),
        "rollout/tokens": float(tokens),
        "rollout/tokens_per_s": tokens / rollout_s if rollout_s > 0 else 0.0,
        "rollout/bubble_ratio": meter.bubble_ratio(),
        "rollout/samples": float(len(usable)),
        "rollout/dropped": float(len(total) - len(usable) - len(filtered)),
        "rollout/retries": float(failures),
        "rollout/losses": float(losses),
        "rollout/moved": float(sum(sample.handovers > 0 for sample in usable)),
        "reward/error_rate": meter.errors / max(1, meter.reports),
        "reward/timeout_rate": meter.timeouts / max(1, meter.reports),
        **meter.filters,
        **meter.scores(),
        **meter.tools.read(),
        **drafting,
        **ahead,
        "staleness/mean": _mean(ages),
        "staleness/max": float(max(ages, default=0)),
        "timing_s/rollout": rollout_s,
        "timing_s/reward": max(0.0, complete_at - generated_at),
    }


def _drafting(samples: Iterable[Sample]) -> dict[str, float]:
    """Speculative decoding of these samples. Empty without reports of it."""
    reports = [sample.drafting for sample in samples if sample.drafting is not None]
    if not reports:
        return {}
    forwards, drafted = sum(report.forwards for report in reports), sum(report.drafted for report in reports)
    accepted = sum(report.accepted for report in reports)
    timed_s, plain_s = sum(report.timed_s for report in reports), sum(report.plain_s for report in reports)
    row = {
        "rollout/spec_forwards": float(forwards),
        "rollout/spec_drafted": float(drafted),
        "rollout/spec_accepted": float(accepted),
        "rollout/spec_timed_s": timed_s,
        "rollout/spec_saved_s": plain_s - timed_s,
        "rollout/spec_draft_s": sum(report.draft_s for report in reports),
    }
    if forwards:
        row["rollout/spec_accept_length"] = 1 + accepted / forwards
    if drafted:
        row["rollout/spec_accept_rate"] = accepted / drafted
    if timed_s > 0:
        row["rollout/spec_net_speedup"] = plain_s / timed_s
    return row


def _ahead(samples: Iterable[Sample]) -> dict[str, float]:
    """Tokens written ahead or by another worker, then verified. Empty without any."""
    written, kept = (sum(sample.ahead[place] for sample in samples) for place in (0, 1))
    if not written:
        return {}
    return {"rollout/ahead_tokens": float(written), "rollout/ahead_kept_ratio": kept / written}


def step_side(meter: StepMeter, previous_at: float | None, now: float) -> dict[str, float]:
    """Metrics that are known when the step is trained. `previous_at`: when the previous step was trained."""
    handed_at = meter.handed_at if meter.handed_at is not None else now
    return {
        "timing_s/train": now - handed_at,
        "timing_s/step": now - (previous_at if previous_at is not None else meter.opened_at),
    }


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


# Metrics of the calls that a step's samples made; names as in docs/metrics.md. Pure accounting.
#
# Names of tools come from what policies write and from users' code, so only those that a call really reached have
# metrics of their own, and only the first `MOST`.

MOST = 64  # tools


@dataclass
class ToolMeter:
    """Calls of one tool that reached it: one that is not there, or that cannot be read, takes no time."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class ToolMeters:
    """Of one step."""

    def __init__(self) -> None:
        self._tools: defaultdict[str, ToolMeter] = defaultdict(ToolMeter)
        self._all = ToolMeter()
        self._refused = 0
        self._longest = 0.0

    def add(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._count(self._all, call)
            self._refused += not call.seconds
            self._longest = max(self._longest, call.seconds)
            if call.seconds and (call.name in self._tools or len(self._tools) < MOST):
                self._count(self._tools[call.name], call)

    def read(self) -> dict[str, float]:
        """Empty without calls."""
        whole = self._all
        if not whole.calls:
            return {}
        found = {
            "tools/calls": float(whole.calls),
            "tools/error_rate": whole.errors / whole.calls,
            "tools/refused_rate": self._refused / whole.calls,
        }
        if reached := whole.calls - self._refused:
            found |= {"timing_s/call": whole.seconds / reached, "timing_s/call_max": self._longest}
        for name, tool in sorted(self._tools.items()):
            found[f"tools/{name}/calls"] = float(tool.calls)
            found[f"tools/{name}/error_rate"] = tool.errors / tool.calls
            found[f"timing_s/call/{name}"] = tool.seconds / tool.calls
        return found

    @staticmethod
    def _count(meter: ToolMeter, call: Call) -> None:
        meter.calls += 1
        meter.errors += bool(call.error)
        meter.seconds += call.seconds
