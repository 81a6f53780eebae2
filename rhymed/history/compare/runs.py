"""`rhymed history audit --against`: did two runs train on the same samples, and are their weights equal?

Reads the lineages and weights of their newest checkpoints only, neither store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rhymed.history.compare.audit import differ, listed, newest
from rhymed.history.compare.weights import weight_difference
from rhymed.run import checkpoint
from rhymed.text import counted, step_name

EQUAL = "the two are equal"
NEARLY = "the two are equal but for the last bits of their weights"
NEAR = 1e-5
"""Weights that differ by no more count as equal: an engine's log-probs differ in their last bits."""


@dataclass
class RunComparison:
    both: int = 0  # steps that both have
    equal: int = 0  # of these
    weights: str = ""  # how they compare
    near: bool = False  # not the same bits, but nearly
    wrong: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "same": not self.wrong}


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Two runs' folders: the same samples in the same steps, and the same weights after them?"""
    (a, ours, _), (b, theirs, _) = newest(first), newest(second)
    our_steps, their_steps = ({line.step: line for line in lines} for lines in (ours, theirs))
    common = sorted(our_steps.keys() & their_steps.keys())
    different = [step for step in common if differ(our_steps[step], their_steps[step])]
    comparison = RunComparison(len(common), len(common) - len(different))
    if different:
        step = different[0]
        comparison.wrong.append(
            f"{step_name(step)}, the first that differs: {differ(our_steps[step], their_steps[step])}"
        )
    if a != b:
        comparison.wrong.append(f"{first.name} has {a} steps in its newest checkpoint, {second.name} has {b}")
    if unpaired := sorted(our_steps.keys() ^ their_steps.keys()):
        comparison.wrong.append(
            f"{step_name(unpaired[0])} is in one of the lineages only ({counted(len(unpaired), 'such step')})"
        )
    exact = any(line.weights for line in ours)  # the trace engine's weights depend on the samples alone
    _weights(first, second, a if a == b else 0, comparison, exact=exact)
    return comparison


def render(comparison: RunComparison, first: str, second: str) -> str:
    steps = counted(comparison.both, "common step")
    lines = [f"{first} and {second}: {comparison.equal} of {steps} trained on the same samples"]
    lines += [comparison.weights] if comparison.weights else []
    return "\n".join(
        [*lines, *(listed(comparison.wrong) if comparison.wrong else [NEARLY if comparison.near else EQUAL])]
    )


def _weights(first: Path, second: Path, step: int, comparison: RunComparison, *, exact: bool) -> None:
    """Of the newest checkpoints, by the digests in their manifests."""
    files = [_manifest(folder, step) for folder in (first, second)]
    if not step or not all(files):
        comparison.weights = "weights: not compared, since the two have no checkpoint of the same step"
    elif files[0] == files[1]:
        comparison.weights = f"weights: the same, bit for bit, after {counted(step, 'step')}"
    else:
        _measure(first, second, step, comparison, 0.0 if exact else NEAR)


def _measure(first: Path, second: Path, step: int, comparison: RunComparison, near: float) -> None:
    """The bits differ: only by the last bits of log-probs, or by more?"""
    folders = [_place(folder, step) for folder in (first, second)]
    by = weight_difference(*(folder.glob("*.safetensors") for folder in folders))
    difference = (
        f"the weights after {counted(step, 'step')} differ: by {by.most:.1g} at most, in {by.differing:,} of"
        f" {by.numbers:,} numbers"
    )
    if by.most <= near:
        comparison.weights, comparison.near = difference, True
    else:
        comparison.wrong.append(difference)


def _place(run: Path, step: int) -> Path:
    return checkpoint.folder_of(run / "checkpoints", step)


def _manifest(folder: Path, step: int) -> Mapping[str, str]:
    try:
        files = json.loads((_place(folder, step) / checkpoint.MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
