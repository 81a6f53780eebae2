"""Two runs that should be equal: did they train on the same samples, and are their weights the same?

Reads the lineages and weights of their newest checkpoints only, neither store. Benchmarks and the tests that inject
faults compare their runs so.

`weight_difference` compares two sets of weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rhymed.core.run import checkpoint
from rhymed.core.text import counted, step_name
from rhymed.records.history.compare.audit import differ, newest

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


# How far two sets of weights differ, number by number. Reads safetensors files tensor by tensor.
#
# An interrupted run ends with the same bits as an uninterrupted one when nothing else changed. With an inference
# engine the last bits of a log-prob depend on which samples share a batch, so there the weights are only nearly the
# same.


class WeightDifference(NamedTuple):
    most: float  # largest difference of two numbers; inf: other tensors, or NaN
    differing: int  # numbers
    numbers: int


def weight_difference(first: Iterable[Path], second: Iterable[Path]) -> WeightDifference:
    """Of the tensors in these files; their dtype must be one of numpy's."""
    from safetensors import safe_open

    most, differing, numbers = 0.0, 0, 0
    ours_files, theirs_files = sorted(first), sorted(second)
    if [file.name for file in ours_files] != [file.name for file in theirs_files]:
        return WeightDifference(math.inf, 0, 0)
    for our_file, their_file in zip(ours_files, theirs_files, strict=True):
        with safe_open(our_file, framework="numpy") as ours, safe_open(their_file, framework="numpy") as theirs:
            if set(ours.keys()) != set(theirs.keys()):
                return WeightDifference(math.inf, 0, 0)
            for name in ours.keys():  # noqa: SIM118
                a, b = ours.get_tensor(name), theirs.get_tensor(name)
                if a.shape != b.shape:
                    return WeightDifference(math.inf, 0, 0)
                numbers += a.size
                differing += int(np.count_nonzero(a != b))
                with np.errstate(invalid="ignore"):  # inf - inf is NaN, and reported as inf
                    gap = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
                most = math.inf if math.isnan(gap) else max(most, gap)
    return WeightDifference(most, differing, numbers)
