"""Which response tokens the policy wrote: only these are learned. Pure: numpy only.

Tokens of an environment are context. They are on no axis of response tokens, so no log-prob, advantage, entropy or
mean ever includes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rhymed.messages import SampleInfo
from rhymed_store.client import StoredSample

Number = TypeVar("Number", bound=np.generic)


def learned_mask(info: SampleInfo) -> NDArray[np.bool_] | None:
    """(response tokens,) True for the policy's; None: all are."""
    if not info.turns:
        return None
    return np.repeat(np.arange(len(info.turns)) % 2 == 0, info.turns)


def learned(info: SampleInfo, values: NDArray[Number]) -> NDArray[Number]:
    """Of values of all response tokens, those of the policy's."""
    mask = learned_mask(info)
    return values if mask is None else values[mask]


def are_wrong(info: SampleInfo) -> bool:
    """Whether the runs of tokens are not those of the response, or the policy wrote nothing."""
    return bool(info.turns) and (sum(info.turns) != info.length or min(info.turns) < 0 or not info.learned)


def turn_metrics(samples: Sequence[StoredSample]) -> dict[str, float]:
    """Empty without an environment."""
    infos = [sample.info for sample in samples if sample.info.turns]
    if not infos:
        return {}
    counts = [(len(info.turns) + 1) // 2 for info in infos]
    total = sum(info.length for info in infos)
    return {
        "turns/mean": float(np.mean(counts)),
        "turns/max": float(max(counts)),
        "turns/environment_ratio": 1.0 - sum(info.learned for info in infos) / max(1, total),
    }
