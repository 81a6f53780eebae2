"""A store folder of one engine's own: what it generates, kept from one process to the next without a store process.

All calls come from one thread. The folder is an ordinary store (`rhymed history` shows it); responses lie there as
imported history, whose negative steps count how often a prompt was asked. A folder that another process writes is
read only. What belongs to another tokenizer or model is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rhymed.errors import StoreError
from rhymed.histospec.library import Past
from rhymed.messages import GetHistory, OpenRun, PutSamples, SampleId, SampleInfo
from rhymed_store.database import Database, Reader
from rhymed_store.history import History, is_open
from rhymed_store.reads import Reads
from rhymed_store.writes import Writes, prepare

log = logging.getLogger(__name__)

FIRST = -(1 << 30)  # step of the first time that a prompt was asked
MAP_BYTES = 64 << 30  # of address space; disk is taken as needed
LEVEL = 1  # of zstd


class LocalStore:
    """Raises `StoreError` when the folder cannot be used at all, `RunMismatch` when it is of another model."""

    def __init__(self, folder: Path, fingerprint: str, responses: int) -> None:
        self._responses = responses
        self._steps: dict[str, tuple[int, int]] = {}  # prompt -> step to write next, responses it has
        self._writes: Writes | None = None
        self._database: Database
        if is_open(folder):
            log.warning("%s is written by another process: it is read, and not added to", folder)
            self._database = Reader(folder)
        else:
            history = History(folder, MAP_BYTES, durable=False)
            self._database, self._writes = history, Writes(history, LEVEL)
            self._commit(lambda batch: self._own.open_run(batch, OpenRun(run="engine", fingerprint=fingerprint)))
        self._reads = Reads(self._database)

    @property
    def _own(self) -> Writes:
        assert self._writes is not None, "only who owns the folder writes"
        return self._writes

    def read(self, prompt: str) -> list[Past]:
        """Its earlier responses; from now on what `write` brings counts as one epoch more."""
        found, arrays = self._reads.history(GetHistory(prompt=prompt, before_step=0, limit=self._responses or 1))
        past, at = [], 0
        for info in found.samples:
            past.append(Past(arrays[0][at : at + info.length].astype(np.int32), info.id.step, info.reward))
            at += info.length
        self._steps[prompt] = (max((one.step for one in past), default=FIRST - 1) + 1, 0)
        return past[: self._responses]

    def write(self, prompt: str, context: Sequence[int], tokens: Sequence[int]) -> None:
        """A finished response."""
        if self._writes is None or not len(tokens):
            return
        step, index = self._steps.setdefault(prompt, (FIRST, 0))
        self._steps[prompt] = (step, index + 1)
        info = SampleInfo(
            id=SampleId(step, prompt, index),
            prompt_length=len(context),
            length=len(tokens),
            finish_reason="stop",
            versions=[(-1, len(tokens))],
        )
        frames = [np.asarray(context, "<u4").tobytes(), np.asarray(tokens, "<u4").tobytes(), b""]
        rows = prepare(PutSamples(samples=[info]), frames, LEVEL)
        self._commit(lambda batch: self._own.put_samples(batch, rows))

    def close(self) -> None:
        self._database.close()  # type: ignore[attr-defined]

    def _commit(self, operation: Any) -> None:
        assert isinstance(self._database, History)
        (error,) = self._database.commit([operation])
        if error is not None:
            raise error


def fingerprint(model_config: Any) -> str:
    """Of what must be the same for token ids to mean the same: the tokenizer and the kind of model."""
    tokenizer = Path(str(model_config.tokenizer))
    file = tokenizer / "tokenizer.json"
    digest = hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file.is_file() else str(tokenizer)
    told = {
        "tokenizer": digest,
        "vocabulary": int(model_config.get_vocab_size()),
        "model": list(getattr(model_config.hf_config, "architectures", None) or []),
    }
    return json.dumps(told, sort_keys=True)


def open_local(folder: str, model_config: Any, responses: int) -> LocalStore | None:
    """None, with a warning, when it cannot be used."""
    try:
        return LocalStore(Path(folder), fingerprint(model_config), responses)
    except (StoreError, OSError) as error:
        log.warning("drafting goes on without the history in %s: %s", folder, error)
        return None
