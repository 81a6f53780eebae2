"""Samples to put into a store, and a store without sockets or with a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rhymed.core.config import Config
from rhymed.core.messages import PutSamples, SampleId, SampleInfo
from rhymed_store.client import NewSample
from rhymed_store.database.prepare import prepare
from rhymed_store.database.reads import Reads
from rhymed_store.database.transactions import Database
from rhymed_store.database.writes import Writes

PROMPT = "00000000000000aa"
DRAFTED = (0.0, 0.8, 1.0, 0.97)  # parts of a response, by index; of every fifth it is not known
OTHER = "00000000000000ab"  # the neighbour: a range that is one too long would find it

SERVE = """
import sys
from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.core.service.process import serve
from rhymed_store.service import StoreService
config = Config.model_validate_json(sys.argv[1])
sys.exit(serve(lambda: StoreService(config.store, layout_of(config))))
"""


def new_sample(step: int = 0, index: int = 0, *, prompt: str = PROMPT, length: int = 50, seed: int = 0) -> NewSample:
    """Its content follows from the arguments, so it can be checked after a crash."""
    rng = np.random.default_rng([seed, step % 2**32, index, length, int(prompt, 16)])
    info = SampleInfo(
        id=SampleId(step, prompt, index),
        prompt_length=7,
        length=length,
        finish_reason="stop",
        versions=[(step, length)] if length else [],
    )
    tokens = rng.integers(0, 49_152, length).astype(np.uint32)
    logprobs = -rng.random(length if step >= 0 else 0, np.float32)  # imported samples have none
    drafted = rng.random(length) < DRAFTED[index % 4] if index % 5 < 4 else None
    return NewSample(info, np.arange(7, dtype=np.uint32), tokens, logprobs, drafted)


class LocalStore:
    """A history with its operations and questions, each operation committed alone."""

    def __init__(self, folder: Path, map_bytes: int = 64 << 20, *, durable: bool = False) -> None:
        self.database = Database(folder, map_bytes, durable=durable)
        self.writes, self.reads = Writes(self.database, 1), Reads(self.database)

    def put(self, *samples: NewSample) -> None:
        masks = [np.packbits(s.drafted) for s in samples if s.drafted is not None]
        known = [s.drafted is not None for s in samples]
        floored = [s.floors is not None for s in samples]
        message = PutSamples(
            samples=[sample.info for sample in samples],
            drafted=known if masks else [],
            floored=floored if any(floored) else [],
        )
        logprobs = [s.logprobs if s.floors is None else np.concatenate([s.logprobs, s.floors]) for s in samples]
        columns = zip(
            *((s.prompt_tokens, s.tokens, both) for s, both in zip(samples, logprobs, strict=True)), strict=True
        )
        frames = [np.concatenate(column).tobytes() for column in columns]
        frames += [np.concatenate(masks).tobytes()] if masks else []
        rows = prepare(message, frames, 1)
        self.do(lambda batch: self.writes.put_samples(batch, rows))

    def do(self, operation: Callable[[Any], None]) -> None:
        (error,) = self.database.commit([operation])
        if error is not None:
            raise error


def start_process(config: Config) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SERVE, config.model_dump_json()])
