"""HistoSpec that always asks its head and verifies all drafts, loaded by a vLLM engine in another process."""

from __future__ import annotations

from typing import Any

import numpy as np

from rhymed.histospec.heads.combine import HeadGain
from rhymed.histospec.proposer import HistoSpec
from rhymed_workers.engines import extension


def always(gain: HeadGain, budget: Any, survival: Any, lengths: Any, limits: Any) -> tuple[Any, float]:
    return np.flatnonzero(limits > 0), 1.0


class Eager(HistoSpec):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        HeadGain.choose = always  # type: ignore[method-assign]
        budget: Any = self._drafter._budget
        budget.choose, budget.paused = lambda survival, lengths: lengths, lambda steps=1: 0


class Extension(extension.Extension):
    """The rollout worker's."""
