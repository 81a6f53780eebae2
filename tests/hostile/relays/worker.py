"""`python -m tests.hostile.relays.worker CONFIG NAME`: tokens that depend on every bit of the weights.

It is a run's rollout worker with the trace engine, but a response is drawn from the digest of the loaded weights:
equal tokens prove equal weights, and a wrong version or a damaged copy changes all that is sampled and trained.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Config, Rollout, Trace
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import layout_of
from rhymed.core.service.process import serve
from rhymed_workers.engines.trace import TraceBook, TraceEngine
from rhymed_workers.rollout.worker import RolloutWorker


class WeightBook(TraceBook):
    """Lengths as of the trace engine, tokens of these weights."""

    def __init__(self, trace: Trace, rollout: Rollout) -> None:
        super().__init__(trace, rollout)
        self.weights = b""

    def _tokens(self, id: SampleId, turn: int | None) -> NDArray[np.uint32]:
        length = len(super()._tokens(id, turn))
        key = hashlib.blake2b(str(id).encode(), key=self.weights, digest_size=16).digest()
        noise = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        return noise.integers(0, self._trace.vocabulary, length, dtype=np.uint32)


class WeightEngine(TraceEngine):
    """Reads the file that it loads."""

    async def open(self) -> None:
        await super().open()
        self._book = self._weights = WeightBook(self._trace, self._rollout)

    async def load(self, version: int, path: Path) -> dict[str, float]:
        self._weights.weights = digest(path)
        return await super().load(version, path)


def digest(path: Path) -> bytes:
    """Of a safetensors file, without its header."""
    content = path.read_bytes()
    return hashlib.blake2b(content[8 + int.from_bytes(content[:8], "little") :], digest_size=32).digest()


def main(file: str, name: str) -> None:
    config = Config.model_validate_json(Path(file).read_text())
    where = layout_of(config)
    engine = WeightEngine(config.trace, config.rollout)
    serve(lambda: RolloutWorker(config, where, name, engine), log_file=where.log(name), level=config.run.log_level)


if __name__ == "__main__":
    main(*sys.argv[1:])
