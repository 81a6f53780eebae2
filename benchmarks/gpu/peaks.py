"""Published peaks of GPUs: dense matrix products, without sparsity, and memory bandwidth. Pure.

From the makers' data sheets. A kind is recognised by its name, as `nvidia-smi` and torch give it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """`bfloat16`, `float32`: operations per second; `memory`: bytes per second."""

    bfloat16: float
    float32: float
    memory: float

    def flops(self, dtype: str) -> float:
        return self.float32 if dtype == "float32" else self.bfloat16


def _peak(bfloat16: float, float32: float, memory: float) -> Peak:
    """TFLOP/s and TB/s."""
    return Peak(bfloat16 * 1e12, float32 * 1e12, memory * 1e12)


PEAKS: dict[str, Peak] = {
    r"B200": _peak(2250, 75, 8.0),
    r"H200": _peak(989, 67, 4.8),
    r"H100.*PCI": _peak(756, 51, 2.0),
    r"H100": _peak(989, 67, 3.35),
    r"A100.*40": _peak(312, 19.5, 1.555),
    r"A100": _peak(312, 19.5, 2.039),
    r"L40S": _peak(362, 91.6, 0.864),
    r"L4\b": _peak(121, 30.3, 0.3),
    r"A10\b": _peak(125, 31.2, 0.6),
    r"(RTX )?A6000": _peak(155, 38.7, 0.768),
    r"(RTX )?4090": _peak(165, 82.6, 1.008),
    r"(RTX )?3090": _peak(71, 35.6, 0.936),
    r"MI300X": _peak(1307, 163, 5.3),
}
"""By a pattern of the name; the first that fits counts."""


def peak_of(kind: str, memory: int = 0) -> Peak | None:
    """None: no peak is known. `memory`: bytes of the GPU, where its name does not have them."""
    name = f"{kind} {memory >> 30}" if memory else kind
    return next((peak for pattern, peak in PEAKS.items() if re.search(rf"\b{pattern}", name, re.IGNORECASE)), None)
