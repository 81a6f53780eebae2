"""What every step was trained on, in one line a step: the proof that nothing was trained twice or left out.

Kept by the trainer in memory and in every checkpoint, so a step that is trained again after a set-back replaces the
one of the lost future. A line's digest is a function of the samples' ids, tokens and rewards alone: who wrote them,
where, when and with how many interruptions does not enter. Knows no learner, no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rhymed.errors import CheckpointError
from rhymed.messages import SampleId
from rhymed_store.client import StoredSample

FILE = "lineage.jsonl"
_HEAD = struct.Struct("<qiI")  # step, index, tokens
_REWARD = struct.Struct("<?d")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One trained step."""

    step: int
    samples: int
    tokens: int  # response tokens
    digest: str  # blake2b-128 in hex over the samples in the order of their ids, see `imprint`
    weights: str = ""  # digest of the weights after it, where that is cheap


class Digest:
    """Grows sample by sample, in the order of their ids."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.samples = self.tokens = 0

    def add(self, id: SampleId, tokens: np.ndarray[Any, Any], reward: float | None) -> None:
        self._hash.update(imprint(id, tokens, reward))
        self.samples += 1
        self.tokens += len(tokens)

    def line(self, step: int, weights: str = "") -> Line:
        return Line(step, self.samples, self.tokens, self._hash.hexdigest(), weights)


class Lineage:
    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines = list(lines)  # by step, ascending, without gaps

    def add(self, step: int, samples: Sequence[StoredSample], weights: str = "") -> Line:
        """Step `step` was trained on these. Lines of it and of later steps, if there are any, were another future."""
        digest = Digest()
        for sample in sorted(samples, key=lambda sample: sample.info.id):
            digest.add(sample.info.id, sample.tokens, sample.info.reward)
        while self.lines and self.lines[-1].step >= step:
            self.lines.pop()
        self.lines.append(digest.line(step, weights))
        return self.lines[-1]

    def save(self, folder: Path) -> None:
        encode = msgspec.json.encode
        (folder / FILE).write_bytes(b"".join(encode(line) + b"\n" for line in self.lines))

    @classmethod
    def load(cls, folder: Path, steps: int) -> Lineage:
        """Of the checkpoint of so many steps. One of an earlier release has none: then it begins here.

        Raises `CheckpointError` where it does not end at the checkpoint's own step.
        """
        try:
            lines = read(folder)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder / FILE}: {error}") from error
        first = steps - len(lines)
        if [line.step for line in lines] != list(range(first, steps)):
            raise CheckpointError(f"{folder / FILE} does not tell of every step once, up to step {steps - 1}")
        return cls(lines)


def read(folder: Path) -> list[Line]:
    """The lines as they stand in a checkpoint's folder. Raises `FileNotFoundError`, `ValueError`."""
    content = (folder / FILE).read_bytes()
    return [msgspec.json.decode(line, type=Line) for line in content.splitlines()]


def imprint(id: SampleId, tokens: np.ndarray[Any, Any], reward: float | None) -> bytes:
    """What of a sample counts, as bytes that no other sample has."""
    head = _HEAD.pack(id.step, id.index, len(tokens)) + id.prompt.encode()
    return head + np.ascontiguousarray(tokens, "<u4").tobytes() + _REWARD.pack(reward is not None, reward or 0.0)
