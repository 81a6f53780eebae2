"""Tokens a forward pass on recorded samples in turns: history, siblings alone, suffix trees, and prompt lookup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.bench.agents.recorded import Recorded, last_epoch, read
from rhymed.bench.agents.replay import Ngram, Passes, replay
from rhymed.bench.policy.arctic import has_arctic
from rhymed.bench.replay import ArcticDrafter, Drafter, IndexDrafter
from rhymed.output import show

FLOOR = 0.3
"""Least survival of a token that history verifies: the budget of an engine decides by its cost; here it is fixed."""


def run(folder: Path, arctic: Path | None = None) -> dict[str, Any]:
    """The last epoch of a run's folder, with the one before it as history. Raises `ConfigError`."""
    recorded, results = read(folder), dict[str, Any]()
    makers = _makers(recorded)
    if has_arctic(arctic):
        makers["suffix"] = lambda trace, responses, epoch: ArcticDrafter(trace, responses, epoch)
    else:
        show("suffix is left out: arctic-inference is not installed (--arctic FOLDER)", flush=True)
    responses, masks = last_epoch(recorded)
    for name, make in makers.items():
        drafter = make(recorded.trace, responses, recorded.trace.epochs[-1])
        floor = FLOOR if isinstance(drafter, IndexDrafter) else 0.0
        found = replay(drafter, responses, masks, floor)
        results[name] = {"turn_1": _row([found[0]]), "later_turns": _row([found[turn] for turn in found if turn])}
    return results


def _makers(recorded: Recorded) -> dict[str, Callable[..., Drafter]]:
    """Calibration and trust come from the epochs before the last one."""
    from rhymed.histospec.drafts.calibration import Calibration
    from rhymed.histospec.drafts.trust import Trust

    learned: dict[str, Any] = {"calibration": Calibration(), "trust": Trust()}
    trace = recorded.trace
    for epoch in trace.epochs[:-1]:
        earlier = Recorded(
            type(trace)(trace.prompts, [one for one in trace.responses if one.epoch <= epoch]),
            [runs for one, runs in zip(trace.responses, recorded.runs, strict=True) if one.epoch <= epoch],
        )
        responses, masks = last_epoch(earlier)
        replay(IndexDrafter(trace, responses, epoch, **learned), responses, masks)
    return {
        "ngram": lambda trace, responses, epoch: Ngram(trace.prompts, responses),
        "siblings": lambda trace, responses, epoch: IndexDrafter(trace, responses, epoch, back=0, **learned),
        "history": lambda trace, responses, epoch: IndexDrafter(trace, responses, epoch, **learned),
    }


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
