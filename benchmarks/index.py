"""`python -m benchmarks index`: the history index compared with arctic-inference's suffix trees on the same
responses.

The last epoch is replayed, 64 responses at a time, with the one before it as history. The number of verified tokens
is swept on both sides (least survival here; factor and least probability there), and the two are compared where they
verify equally many. Without arctic-inference only the index is measured. To build only its suffix trees, in a folder
that `PYTHONPATH` names:

    pip download arctic-inference --no-deps --no-binary :all:   # and unpack it
    cmake -S csrc/suffix_decoding -B build && cmake --build build   # needs nanobind
    cp -r arctic_inference/suffix_decoding FOLDER/arctic_inference/; cp build/_C*.so there, too
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replay import ArcticDrafter, IndexDrafter, Score, replay
from benchmarks.traces import Response, Trace, load, record, synthetic
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Matching
from rhymed.start.bench.spec import has_arctic

LONGEST = 32
FLOORS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
KNOBS = ((1.0, 0.1), (1.0, 0.5), (2.0, 0.1), (2.0, 0.5), (4.0, 0.1), (4.0, 0.3), (4.0, 0.5), (4.0, 0.7), (4.0, 0.9))


def run(quick: bool, trace: Path | None = None, model: Path | None = None) -> dict[str, Any]:
    """Tokens per forward, verified and accepted tokens, seconds and bytes, of both sides. Replays a run or a
    recorded trace, or responses of a model (a folder), or synthetic text."""
    prompts = 8 if quick else 32
    recorded = load(trace) if trace else record(model, prompts) if model else synthetic(prompts)
    result: dict[str, Any] = {"trace": str(trace or model or "synthetic"), "epochs": recorded.epochs}
    result["tokens"] = sum(len(response.tokens) for response in recorded.responses)
    print(f"{result['trace']}: {len(recorded.responses)} responses, {result['tokens']} tokens")
    learned = _learn(recorded)
    floors, knobs = (FLOORS[1::3], KNOBS[::4]) if quick else (FLOORS, KNOBS)
    paper = {"orders": (7, 3), **_learn(recorded, backoff=True, orders=(7, 3))}
    result["index"] = [_measure_index(recorded, floor, **learned) for floor in floors]
    result["paper"] = [_measure_index(recorded, floor, backoff=True, **paper) for floor in floors]
    result["alone"] = [_measure_index(recorded, floor, recent=0, **_learn(recorded, recent=0)) for floor in floors]
    _print("index, by least survival", result["index"])
    _print("the same without responses of other prompts", result["alone"])
    result["first"] = [_measure_index(recorded, floor, recorded.epochs[0]) for floor in floors]
    result["first_alone"] = [_measure_index(recorded, floor, recorded.epochs[0], recent=0) for floor in floors]
    _print("the first epoch", result["first"])
    _print("the first epoch without responses of other prompts", result["first_alone"])
    _print("the paper's matching (7 tokens, backing off to 3; the last epoch only)", result["paper"])
    result["reliability"] = _reliability(recorded, **learned)
    if not has_arctic():
        print("arctic-inference is not installed: only the index is measured (how to build it: benchmarks/index.py)")
        return result
    result["arctic"] = [_measure_arctic(recorded, factor, least) for factor, least in knobs]
    _print("arctic-inference, by spec factor and least probability", result["arctic"])
    result["compared"] = _compare(result["index"], result["arctic"])
    return result


def _settings(floor: float, backoff: bool = False) -> Matching:
    return Matching(longest=LONGEST, floor=floor, backoff=backoff)


def _learn(trace: Trace, backoff: bool = False, **options: Any) -> dict[str, Any]:
    """Calibration and trust, learned from the epochs before the last one."""
    learned: dict[str, Any] = {"calibration": Calibration(), "trust": Trust()}
    for epoch in trace.epochs[1:-1]:
        responses = trace.of(epoch)
        drafter = IndexDrafter(trace, responses, epoch, settings=_settings(0.02, backoff), **learned, **options)
        replay(drafter, responses, Score())
    return learned


def _measure_index(
    trace: Trace, floor: float, epoch: int | None = None, backoff: bool = False, **options: Any
) -> dict[str, Any]:
    """Of the last epoch, or of `epoch`."""
    epoch = trace.epochs[-1] if epoch is None else epoch
    drafter = IndexDrafter(trace, trace.of(epoch), epoch, settings=_settings(floor, backoff), **options)
    return {"knobs": floor, **_row(drafter, trace.of(epoch))}


def _measure_arctic(trace: Trace, factor: float, least: float) -> dict[str, Any]:
    epoch = trace.epochs[-1]
    drafter = ArcticDrafter(trace, trace.of(epoch), epoch, factor, least)
    return {"knobs": (factor, least), **_row(drafter, trace.of(epoch))}


def _row(drafter: IndexDrafter | ArcticDrafter, responses: Sequence[Response]) -> dict[str, Any]:
    score = Score()
    replay(drafter, responses, score)
    return {
        "tokens_per_forward": score.per_forward,
        "verified_per_token": score.cost,
        "accepted_per_verified": score.rate,
        "draft_us": score.draft_s / score.forwards * 1e6,
        "build_tokens_per_s": drafter.built / max(drafter.build_s, 1e-9),
        "bytes_per_token": drafter.past_bytes / max(drafter.built, 1),
    }


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    print("     knobs  tokens/forward  verified/token  accepted/verified  draft us  build Mtok/s  bytes/token")
    for row in rows:
        print(
            f"{row['knobs']!s:>10}  {row['tokens_per_forward']:14.2f}  {row['verified_per_token']:14.3f}"
            f"  {row['accepted_per_verified']:17.3f}  {row['draft_us']:8.2f}"
            f"  {row['build_tokens_per_s'] / 1e6:12.2f}  {row['bytes_per_token']:11.1f}"
        )


def _reliability(trace: Trace, **learned: Any) -> list[dict[str, float]]:
    """Drafted tokens by predicted survival, and the share that survived."""
    epoch, score = trace.epochs[-1], Score()
    responses = trace.of(epoch)
    replay(IndexDrafter(trace, responses, epoch, settings=_settings(0.02), **learned), responses, score)
    predicted, realised = np.concatenate(score.predicted), np.concatenate(score.realised)
    print("\nsurvival: predicted, realised, tokens")
    rows = []
    for low in np.arange(0.0, 1.0, 0.1):
        inside = (predicted >= low) & (predicted < low + 0.1)
        if inside.any():
            rows.append({"predicted": float(predicted[inside].mean()), "realised": float(realised[inside].mean())})
            print(f"{rows[-1]['predicted']:12.3f} {rows[-1]['realised']:9.3f} {int(inside.sum()):9d}")
    return rows


def _compare(index: list[dict[str, Any]], trees: list[dict[str, Any]]) -> dict[str, float]:
    """Ratios of index to suffix trees; tokens per forward where both verify equally many per token. Settings of the
    trees that verify less, or more, than any of the index are left out."""
    costs = [row["verified_per_token"] for row in index]
    comparable = [row for row in trees if min(costs) <= row["verified_per_token"] <= max(costs)]

    def at(cost: float, value: str) -> float:
        return float(np.interp(cost, costs, [row[value] for row in index]))

    def ratios(value: str) -> list[float]:
        return [at(row["verified_per_token"], value) / row[value] for row in comparable]

    def median(rows: list[dict[str, Any]], value: str) -> float:
        return float(np.median([row[value] for row in rows]))

    result = {
        "tokens_per_forward_least": min(ratios("tokens_per_forward"), default=float("nan")),
        "tokens_per_forward_median": float(np.median(ratios("tokens_per_forward") or [np.nan])),
        "accepted_per_verified_least": min(ratios("accepted_per_verified"), default=float("nan")),
        "draft_time": median(trees, "draft_us") / median(index, "draft_us"),
        "build_speed": median(index, "build_tokens_per_s") / median(trees, "build_tokens_per_s"),
        "bytes": median(index, "bytes_per_token") / median(trees, "bytes_per_token"),
    }
    print("\nindex to arctic-inference, where both verify equally many tokens (least and median over its settings)")
    for name, ratio in result.items():
        print(f"{name:28} {ratio:8.2f}")
    return result
