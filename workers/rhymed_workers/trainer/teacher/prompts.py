"""The sequences that a teacher reads: its own prompts, and the responses of the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhymed.inputs.supervision.demonstrations import TeacherRenderer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.policy.packing import Sequences
from rhymed_workers.trainer.turns import sequences_of


class TeacherPrompts:
    """Without a renderer the teacher's prompts are the policy's, whose tokens come with the samples."""

    def __init__(self, render: TeacherRenderer | None = None) -> None:
        self._render = render
        self.reads_rows = render is not None

    def sequences(self, samples: Sequence[StoredSample]) -> list[Sequences]:
        """Those of the policy, in their order. Raises `DataError` for a row that has no demonstration."""
        if self._render is None:
            return sequences_of(samples)
        prompts: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        for sample in samples:
            name = sample.info.id.prompt
            if name not in prompts:
                assert sample.row is not None, "samples are fetched with their rows"
                prompts[name] = np.array(self._render(f"prompt {name}", sample.row), np.int64)
        return sequences_of(samples, [prompts[sample.info.id.prompt] for sample in samples])
