"""What is wrong in the newest steps of a run, and what to change: a table of faults that have a cure. Pure.

A row is a step's line of `metrics.jsonl`, names as in docs/metrics.md; a value may be missing or None. The thresholds
are starting points, not laws: advice never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

from rhymed.core.algorithms import ALGORITHMS

RECENT = 5  # steps whose means are looked at; before there are so many, there is no advice


class Rule(NamedTuple):
    name: str
    metric: str
    least: float  # mean of the newest steps
    wrong: str  # a sentence, with that mean
    change: str  # a sentence


RULES = (
    Rule(
        "erring",
        "reward/error_rate",
        0.05,
        "{:.0%} of the newest scorings ended with an error or took longer than reward.timeout_s.",
        "Read the errors with `rhymed logs --process 'reward-*' --level warning`, and correct the reward.",
    ),
    Rule(
        "mismatch",
        "mismatch_kl/mean",
        0.02,  # nats per token; engines in bfloat16 are near 0.001
        "Engine and trainer give the same tokens different probabilities: {:.2g} nats per token.",
        'Lower schedule.max_staleness, set trainer.correction, or try model.dtype = "float32".',
    ),
    Rule(
        "flat",
        "reward/flat_groups",
        0.9,
        "In {:.0%} of the newest groups all rewards are equal: almost nothing is learned from them.",
        "Take harder rows if they are solved, else easier ones; give partial rewards, raise rollout.group_size, or"
        " set trainer.dynamic_sampling.",
    ),
    Rule(
        "clipped",
        "response_length/clip_ratio",
        0.25,
        "{:.0%} of the newest responses are cut at the limit, many of them before their answer.",
        "Raise rollout.max_response_length, ask for shorter answers in the prompt, or set trainer.overlong_cache.",
    ),
)
"""The most serious first."""

METRICS = tuple(rule.metric for rule in RULES)


def advise(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[dict[str, str]]:
    """`name`, `wrong` and `change` of each fault. `config`: as in config.json, which may lack anything."""
    found = []
    for name, metric, least, wrong, change in RULES:
        known = [row[metric] for row in rows[-RECENT:] if row.get(metric) is not None]
        if len(rows) < RECENT or not known or not all(map(isfinite, known)) or fmean(known) < least:
            continue
        if name != "flat" or _learns_from_groups(config):
            found.append({"name": name, "wrong": wrong.format(fmean(known)), "change": change})
    return found


def _learns_from_groups(config: Mapping[str, Any]) -> bool:
    trainer = config.get("trainer")
    recipe = ALGORITHMS.get(str(trainer.get("algorithm"))) if isinstance(trainer, Mapping) else None
    return recipe is None or recipe.advantage in ("group-mean", "leave-one-out", "decoupled")
