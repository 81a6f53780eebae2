"""What the trainer asks of whoever learns, and who that is. Only a learner that needs torch imports it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rhymed.config import Config
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.samples import Progress


class Learner(Protocol):
    """What the trainer asks of whoever learns. Blocking; on one thread, but for `check`."""

    steps: int  # trained so far; also the version of the weights
    reads_logprobs: bool  # samples are fetched with log-probs and prompt tokens

    @property
    def dtype(self) -> str: ...  # of the weights that are published

    def check(self, step: int, samples: Sequence[StoredSample]) -> None: ...

    def train(self, samples: Sequence[StoredSample], progress: Progress) -> dict[str, float]: ...

    def tensors(self) -> dict[str, Any]: ...

    def digest(self) -> str: ...

    def save(self, folder: Path) -> None: ...


def restore(config: Config, folder: Path | None) -> Learner:
    """The learner that the configuration names, from a checkpoint's folder or from the beginning.

    Torch takes seconds to import, so only who needs it does.
    """
    if config.trainer.engine == "trace":
        from rhymed_workers.trainer.trace import TraceLearner

        return TraceLearner.restore(config, folder)
    from rhymed_workers.trainer.learner import Learner as TorchLearner

    return TorchLearner.restore(config, folder)
