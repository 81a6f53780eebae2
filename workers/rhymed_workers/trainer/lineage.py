"""What every step was trained on, one line per step: the proof that nothing was trained twice or left out.

The trainer keeps it in memory and in every checkpoint, so a step that is trained again after a rollback replaces the
line that was lost. A line's digest is a function of the samples' ids, tokens and rewards only: it does not depend on
which worker generated them, when, or with how many interruptions. Knows no learner and no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rhymed.core.errors import CheckpointError
from rhymed.core.messages import SampleId
from rhymed_store.client import StoredSample

FILE = "lineage.jsonl"
_HEAD = struct.Struct("<qiI")  # step, index, tokens
_REWARD = struct.Struct("<?d")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One trained step."""

    step: int
    samples: int
    tokens: int  # response tokens
    digest: str  # blake2b-128 in hex over the samples in the order of their ids, see `sample_bytes`
    weights: str = ""  # digest of the weights after the step; empty if that is slow


class Digest:
    """Of the samples of a step, which are added in the order of their ids."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.samples = self.tokens = 0

    def add(self, id: SampleId, tokens: np.ndarray[Any, Any], reward: float | None) -> None:
        self._hash.update(sample_bytes(id, tokens, reward))
        self.samples += 1
        self.tokens += len(tokens)

    def line(self, step: int, weights: str = "") -> Line:
        return Line(step, self.samples, self.tokens, self._hash.hexdigest(), weights)


class Lineage:
    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines = list(lines)  # by step, ascending, without gaps

    def add(self, step: int, samples: Sequence[StoredSample], weights: str = "") -> Line:
        """Step `step` was trained on these. Drops lines of this step and of later ones: they were rolled back."""
        digest = Digest()
        for sample in sorted(samples, key=lambda sample: sample.info.id):
            digest.add(sample.info.id, sample.tokens, sample.info.reward)
        while self.lines and self.lines[-1].step >= step:
            self.lines.pop()
        self.lines.append(digest.line(step, weights))
        return self.lines[-1]

    def save(self, folder: Path) -> None:
        (folder / FILE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines))

    def before(self, write: Callable[[], Mapping[str, str]], folder: Path) -> Callable[[], Mapping[str, str]]:
        """Saves the lines as they are now, then calls `write`: all of a checkpoint, see `saving.Finish`."""
        lines = Lineage(self.lines)

        def finish() -> Mapping[str, str]:
            lines.save(folder)
            return {FILE: "", **write()}

        return finish

    @classmethod
    def load(cls, folder: Path, steps: int) -> Lineage:
        """From the checkpoint after `steps` steps. Raises `CheckpointError` unless it has one line per step."""
        try:
            lines = read(folder)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder / FILE}: {error}") from error
        if [line.step for line in lines] != list(range(steps)):
            raise CheckpointError(f"{folder / FILE} does not list every step up to {steps} exactly once")
        return cls(lines)


def read(folder: Path) -> list[Line]:
    """The lines in a checkpoint's folder, unchecked. Raises `OSError`, `ValueError`."""
    return [msgspec.json.decode(line, type=Line) for line in (folder / FILE).read_bytes().splitlines()]


def sample_bytes(id: SampleId, tokens: np.ndarray[Any, Any], reward: float | None) -> bytes:
    """The identity and content of a sample; different for any two samples."""
    head = _HEAD.pack(id.step, id.index, len(tokens)) + id.prompt.encode()
    return head + np.ascontiguousarray(tokens, "<u4").tobytes() + _REWARD.pack(reward is not None, reward or 0.0)
