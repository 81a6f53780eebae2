"""How far two sets of weights differ, number by number. Reads safetensors files tensor by tensor.

An interrupted run ends with the same bits as an uninterrupted one when nothing else changed. With an inference engine
the last bits of a log-prob depend on which samples share a batch, so there the weights are only nearly the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


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
