"""The learner of a gang as the trainer's service sees it: every call becomes an order to all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rhymed.config import Config
from rhymed.errors import CheckpointError, TrainerError
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.gang import orders, work
from rhymed_workers.trainer.gang.gang import Gang
from rhymed_workers.trainer.gang.meeting import Gone
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.samples import Progress
from rhymed_workers.trainer.saving.checkpoints import Finish
from rhymed_workers.trainer.tokenstats.step import StepStats


class GangLearner:
    """Rank 0's. An error in any method leaves the ranks at different places, so the gang has to end."""

    def __init__(self, gang: Gang, learner: TorchLearner) -> None:
        self._gang, self._learner = gang, learner
        self.reads_logprobs, self.reads_rows = learner.reads_logprobs, learner.reads_rows
        self.dtype = learner.dtype

    @classmethod
    def restore(cls, config: Config, folder: Path | None, gang: Gang) -> GangLearner:
        """From a checkpoint's folder, or without one from the model. Raises `CheckpointError`, `ConfigError`."""
        ranks = gang.enter()
        gang.order(orders.Load(str(folder) if folder else None))
        return cls(gang, TorchLearner.restore(config, folder, ranks))

    def __str__(self) -> str:
        return f"{self._learner} on {self._gang.size} ranks"

    @property
    def steps(self) -> int:
        return self._learner.steps

    def allowed(self, step: int, samples: Sequence[StoredSample]) -> list[StoredSample]:
        return self._learner.allowed(step, samples)

    def begin(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> None:
        with self._exchanges():
            self._gang.order(orders.Begin(step))
            work.exchange(samples)
            self._learner.begin(step, samples, progress)

    def train(self, samples: Sequence[StoredSample], progress: Progress, run_steps: int) -> dict[str, float]:
        with self._exchanges():
            self._gang.order(orders.Train(run_steps))
            work.exchange(samples)
            return self._learner.train(samples, progress, run_steps)

    def tensors(self) -> dict[str, Any]:
        with self._exchanges():
            self._gang.order(orders.Gather())
            return self._learner.tensors()

    def metadata(self) -> dict[str, str]:
        return self._learner.metadata()

    @property
    def token_stats(self) -> StepStats | None:
        return self._learner.token_stats

    def digest(self) -> str:
        return self._learner.digest()

    def snapshot(self, folder: Path, *, copy: bool) -> Finish:
        """Each rank writes its part, and computes the digests of its files."""
        with self._exchanges():
            self._gang.order(orders.Save(str(folder), copy))
            finish = work.snapshot(self._learner, folder, 0, copy=copy)
        return lambda: self._finish(folder, finish)

    def _finish(self, folder: Path, finish: Finish) -> dict[str, str]:
        with self._exchanges():
            digests = {**finish(), **self._gang.digests(folder)}
        if missing := [name for name in digests if not (folder / name).is_file()]:
            raise CheckpointError(
                f"{folder / missing[0]} was written by another rank and is not here: put run.folder on a file system"
                " that all nodes share"
            )
        return digests

    @contextlib.contextmanager
    def _exchanges(self) -> Iterator[None]:
        """Raises `TrainerError` where tensors could not be exchanged."""
        try:
            yield
        except RuntimeError as error:  # gloo's are of no other kind
            if loss := self._gang.lost():
                raise loss from error
            if isinstance(error, Gone) or "gloo" in str(error):
                raise TrainerError(f"a rank of the trainer is lost: {str(error).splitlines()[0]}") from error
            raise
