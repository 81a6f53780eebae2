"""Tokens a forward pass on recorded samples in turns: history, siblings alone, suffix trees, and prompt lookup."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.agents.recorded import read
from benchmarks.agents.replay import Ngram, Passes, replay
from benchmarks.replay import ArcticDrafter, Drafter, IndexDrafter
from benchmarks.traces import Response, Trace
from rhymed.core.output import show
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.trust import Trust
from rhymed.start.bench.spec import has_arctic

Mask = NDArray[np.bool_]

FLOOR = 0.3
"""Least survival of a token that history verifies: the budget of an engine decides by its cost; here it is fixed."""


def run(folder: Path) -> dict[str, Any]:
    """Each epoch of a run's folder but the first, with the one before it as history. Raises `ConfigError`."""
    recorded = read(folder)
    suffix = has_arctic()
    if not suffix:
        show("suffix is left out: arctic-inference is not installed", flush=True)
    learned: dict[str, Any] = {"calibration": Calibration(), "trust": Trust()}
    results = dict[str, Any]()
    for epoch in recorded.trace.epochs:
        given = recorded.of(epoch)
        if epoch > recorded.trace.epochs[0]:
            results[f"epoch_{epoch}"] = _epoch(recorded.trace, epoch, *given, suffix=suffix, learned=learned)
        drafter = IndexDrafter(recorded.trace, given[0], epoch, **learned)
        replay(drafter, *given)  # the next epoch has what an engine would have learned
    return results


def _epoch(
    trace: Trace, epoch: int, responses: list[Response], masks: list[Mask], *, suffix: bool, learned: dict[str, Any]
) -> dict[str, Any]:
    drafters: dict[str, Drafter] = {
        "ngram": Ngram(trace.prompts, responses),
        **({"suffix": ArcticDrafter(trace, responses, epoch)} if suffix else {}),
        "siblings": IndexDrafter(trace, responses, epoch, back=0, **copy.deepcopy(learned)),
        "history": IndexDrafter(trace, responses, epoch, **copy.deepcopy(learned)),
    }
    rows = {}
    for name, drafter in drafters.items():
        found = replay(drafter, responses, masks, FLOOR if isinstance(drafter, IndexDrafter) else 0.0)
        rows[name] = {"turn_1": _row([found[0]]), "later_turns": _row([found[turn] for turn in found if turn])}
    return rows


def _row(passes: list[Passes]) -> dict[str, float]:
    total = Passes()
    for one in passes:
        total.forwards += one.forwards
        total.verified += one.verified
        total.generated += one.generated
    return {
        "tokens_per_forward": total.per_forward,
        "verified_per_token": total.cost,
        "tokens": float(total.generated),
    }
