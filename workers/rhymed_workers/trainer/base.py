"""What the trainer service requires of a learner, and which learner the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rhymed.core.config import Config
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.samples import Progress
from rhymed_workers.trainer.saving import Finish

if TYPE_CHECKING:
    from rhymed_workers.trainer.distributed.leader import Leader


class Learner(Protocol):
    """Blocking. All methods but `allowed` are called on one thread."""

    reads_logprobs: bool  # samples are fetched with log-probs and prompt tokens
    reads_rows: bool  # and with the rows of their prompts

    @property
    def steps(self) -> int: ...  # trained so far; also the version of the weights

    @property
    def dtype(self) -> str: ...  # of the weights that are published

    def allowed(self, step: int, samples: Sequence[StoredSample]) -> list[StoredSample]:
        """Those that keep the staleness contract."""

    def begin(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> None:
        """Compute what can be computed of these whole groups of step `step`, if it is the next step.

        `train` gets all samples of the step, and leaves out what is computed.
        """

    def train(self, samples: Sequence[StoredSample], progress: Progress, run_steps: int) -> dict[str, float]:
        """Train the next step; returns its metrics. `run_steps`: of the whole run; 0: unknown."""

    def tensors(self) -> dict[str, Any]:
        """The weights by name, torch's or numpy's arrays."""

    def metadata(self) -> dict[str, str]:
        """For the published file's header: of adapters, the model that they change; of whole weights, nothing."""

    def digest(self) -> str:
        """Of the weights; empty if that is slow."""

    def snapshot(self, folder: Path, *, copy: bool) -> Finish:
        """Everything that a resume needs, as it is now. What it returns writes it into `folder`, on another thread,
        and is called in any case. `copy`: the next steps may be trained before it has returned."""


def restore(config: Config, folder: Path | None, leader: Leader | None = None) -> Learner:
    """The learner that the configuration names, from a checkpoint's folder or from the beginning. `leader`: of
    several ranks.

    Torch is imported only if needed: it takes seconds.
    """
    if leader is not None:
        from rhymed_workers.trainer.distributed.leader import DistributedLearner

        return DistributedLearner.restore(config, folder, leader)
    if config.trainer.engine == "trace":
        from rhymed_workers.trainer.trace import TraceLearner

        step_samples = config.rollout.prompts_per_step * config.rollout.group_size
        return TraceLearner.restore(config.trace, config.schedule, folder, step_samples)
    from rhymed_workers.trainer.learner import TorchLearner

    return TorchLearner.restore(config, folder)
