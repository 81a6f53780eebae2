"""How far two sets of weights are apart, number by number. Reads safetensors files by their headers, a tensor a time.

Weights of a run that was interrupted are the same bits where nothing else changed. With an inference engine the last
bits of a log-prob depend on which samples were computed together, so there they are only nearly the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Apart(NamedTuple):
    most: float  # largest difference of two numbers; inf: other tensors, or something that is no number
    differing: int  # numbers
    numbers: int


def apart(first: Iterable[Path], second: Iterable[Path]) -> Apart:
    """Of the tensors in these files, float32 or of another kind that numpy knows."""
    from safetensors import safe_open

    most, differing, numbers = 0.0, 0, 0
    ours_files, theirs_files = sorted(first), sorted(second)
    if [file.name for file in ours_files] != [file.name for file in theirs_files]:
        return Apart(math.inf, 0, 0)
    for one, other in zip(ours_files, theirs_files, strict=True):
        with safe_open(one, framework="numpy") as ours, safe_open(other, framework="numpy") as theirs:
            if set(ours.keys()) != set(theirs.keys()):
                return Apart(math.inf, 0, 0)
            for name in ours.keys():  # noqa: SIM118
                a, b = ours.get_tensor(name), theirs.get_tensor(name)
                if a.shape != b.shape:
                    return Apart(math.inf, 0, 0)
                numbers += a.size
                differing += int(np.count_nonzero(a != b))
                with np.errstate(invalid="ignore"):  # inf less inf is no number, and told as such
                    gap = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
                most = math.inf if math.isnan(gap) else max(most, gap)
    return Apart(most, differing, numbers)
