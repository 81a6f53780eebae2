"""The learner without a model: a few numbers that every trained sample changes.

`SIZE` float32 numbers with momentum stand for weights and optimizer. A sample's gradient is a pseudo-random function
of its id, tokens and reward, summed in the order of the ids: equal samples give equal bits, and a different, missing
or repeated sample changes all bits from then on. Needs neither torch nor a model. For runs of the trace engine, which
try the whole system and prove what it trains.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Schedule, Trace
from rhymed.core.errors import CheckpointError
from rhymed.core.messages import SampleId
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.lineage import sample_bytes
from rhymed_workers.trainer.samples import Progress, check_staleness, sample_metrics, scored_groups, within_staleness
from rhymed_workers.trainer.saving import Finish

SIZE = 1024
MOMENTUM = np.float32(0.9)
RATE = np.float32(0.01)
SLICE_S = 0.02  # of a step's time: how soon it can be interrupted
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.state"

Numbers = NDArray[np.float32]


class TraceLearner:
    """Two learners with equal state and equal samples, in any order, end up with equal bits."""

    dtype = "float32"
    reads_logprobs = False
    reads_rows = False

    def __init__(self, trace: Trace, schedule: Schedule, step_samples: int = 1) -> None:
        """`step_samples`: of a step, about."""
        self._train_s, self._max_staleness, self._step_samples = trace.train_s, schedule.max_staleness, step_samples
        self._begun: set[SampleId] = set()  # samples whose time has passed already
        self.steps = 0  # trained so far; also the version of the weights
        self._weights: Numbers = np.zeros(SIZE, np.float32)
        self._momentum: Numbers = np.zeros(SIZE, np.float32)

    @classmethod
    def restore(cls, trace: Trace, schedule: Schedule, folder: Path | None, step_samples: int = 1) -> TraceLearner:
        learner = cls(trace, schedule, step_samples)
        if folder is not None:
            learner.load(folder)
        return learner

    def __str__(self) -> str:
        return f"{SIZE} numbers for weights (trainer.engine = trace)"

    def allowed(self, step: int, samples: Sequence[StoredSample]) -> list[StoredSample]:
        return within_staleness(step, samples, self._max_staleness)

    def begin(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> None:
        """The samples' share of a step's time passes; all else is computed in `train`."""
        new = {sample.info.id for sample in samples} - self._begun
        if step == self.steps:
            self._begun |= new
            self._wait(time.perf_counter(), self._train_s * len(new) / self._step_samples, progress)

    def train(
        self,
        samples: Sequence[StoredSample],
        progress: Progress = lambda done, total: None,
        run_steps: int = 0,
    ) -> dict[str, float]:
        """Train the next step, in `trace.train_s` seconds or more with what has begun, and return its metrics."""
        check_staleness(self.steps, samples, self._max_staleness)
        started = time.perf_counter()
        chosen, unscored = scored_groups(samples)
        gradient = np.zeros(SIZE, np.float32)
        for sample in sorted(samples, key=lambda sample: sample.info.id):
            gradient += gradient_of(sample)
        begun = sum(sample.info.id in self._begun for sample in samples)
        self._wait(started, self._train_s * (1 - begun / max(1, len(samples))), progress)
        self._begun.clear()
        self._momentum = MOMENTUM * self._momentum + gradient
        self._weights = self._weights - RATE * self._momentum
        self.steps += 1
        seconds = time.perf_counter() - started
        tokens = sum(sample.info.length for sample in samples)
        return sample_metrics(self.steps - 1, samples, chosen) | {
            "actor/groups_unscored": float(unscored),
            "actor/grad_norm": float(np.linalg.norm(gradient)),
            "timing_s/compute": seconds,
            "perf/train_tokens_per_s": tokens / max(seconds, 1e-9),
        }

    def _wait(self, started: float, seconds: float, progress: Progress) -> None:
        total = max(1, round(seconds / SLICE_S))
        for done in range(total):
            progress(done, total)
            left = started + seconds * (done + 1) / total - time.perf_counter()
            time.sleep(max(0.0, left))
        progress(total, total)

    def tensors(self) -> dict[str, Numbers]:
        return {"weights": self._weights}

    def metadata(self) -> dict[str, str]:
        return {}

    def digest(self) -> str:
        return hashlib.blake2b(self._weights.tobytes(), digest_size=16).hexdigest()

    def snapshot(self, folder: Path, *, copy: bool = False) -> Finish:
        """Nothing is copied: a step makes new arrays."""
        weights, momentum, steps = self._weights, self._momentum, self.steps

        def finish() -> dict[str, str]:
            from safetensors.numpy import save_file

            save_file({"weights": weights}, folder / WEIGHTS)
            save_file({"momentum": momentum}, folder / OPTIMIZER)
            (folder / "config.json").write_text(json.dumps({"model_type": "trace", "size": SIZE}))
            (folder / "trainer.json").write_text(json.dumps({"steps": steps}))
            return dict.fromkeys([WEIGHTS, OPTIMIZER, "config.json", "trainer.json"], "")

        return finish

    def save(self, folder: Path) -> None:
        self.snapshot(folder)()

    def load(self, folder: Path) -> None:
        """Raises `CheckpointError`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            weights, momentum = load_file(folder / WEIGHTS)["weights"], load_file(folder / OPTIMIZER)["momentum"]
            steps = int(json.loads((folder / "trainer.json").read_text())["steps"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: not a checkpoint of trainer.engine = trace: {error!r}") from error
        if {weights.shape, momentum.shape} != {(SIZE,)} or {weights.dtype, momentum.dtype} != {np.dtype(np.float32)}:
            raise CheckpointError(f"{folder}: not a checkpoint of trainer.engine = trace: {SIZE} numbers expected")
        self._weights, self._momentum, self.steps = weights, momentum, steps


def gradient_of(sample: StoredSample) -> Numbers:
    """(SIZE,) numbers between -1/2 and 1/2."""
    content = sample_bytes(sample.info.id, sample.tokens, sample.info.reward)
    key = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key)).random(SIZE, dtype=np.float32) - np.float32(0.5)
