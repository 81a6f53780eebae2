"""What the trainer service requires of a learner, and which learner the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rhymed.config import Config
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.samples import Progress


class Learner(Protocol):
    """Blocking. All methods but `check` are called on one thread."""

    steps: int  # trained so far; also the version of the weights
    reads_logprobs: bool  # samples are fetched with log-probs and prompt tokens
    reads_rows: bool  # and with the rows of their prompts

    @property
    def dtype(self) -> str: ...  # of the weights that are published

    def check(self, step: int, samples: Sequence[StoredSample]) -> None:
        """Raises `StalenessBroken`."""

    def train(self, samples: Sequence[StoredSample], progress: Progress, run_steps: int) -> dict[str, float]:
        """Train the next step; returns its metrics. `run_steps`: of the whole run; 0: unknown."""

    def tensors(self) -> dict[str, Any]:
        """The weights by name, torch's or numpy's arrays."""

    def metadata(self) -> dict[str, str]:
        """What the published file says of its tensors: nothing of whole weights, over which model of adapters."""

    def digest(self) -> str:
        """Of the weights; empty if that is slow."""

    def save(self, folder: Path) -> None:
        """Write everything that a resume needs."""


def restore(config: Config, folder: Path | None) -> Learner:
    """The learner that the configuration names, from a checkpoint's folder or from the beginning.

    Torch is imported only if needed: it takes seconds.
    """
    if config.trainer.engine == "trace":
        from rhymed_workers.trainer.trace import TraceLearner

        return TraceLearner.restore(config.trace, config.schedule, folder)
    from rhymed_workers.trainer.learner import TorchLearner

    return TorchLearner.restore(config, folder)
