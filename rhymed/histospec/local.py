"""A store folder that belongs to one engine: keeps its responses across processes, without a store process.

All calls come from one thread. The folder is an ordinary store (`rhymed history` shows it). Its responses have
negative steps, from ROUNDS on, which count how often a prompt was asked. A folder that cannot be written,
for instance because another engine writes it, is read only. Histories of another tokenizer or model are refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np

from rhymed.core.errors import RhymedError, RunMismatch, StoreDamaged
from rhymed.core.messages import GetHistory, OpenRun, PutSamples, SampleId, SampleInfo
from rhymed.histospec.index.builder import PastResponse
from rhymed_store.columns import ROUNDS
from rhymed_store.database.prepare import prepare
from rhymed_store.database.reads import Reads
from rhymed_store.database.tables import Reader
from rhymed_store.database.transactions import Database, Operation
from rhymed_store.database.writes import Writes

log = logging.getLogger(__name__)

RUN = "engine"
MAP_BYTES = 64 << 30  # of address space; the file grows as needed
LEVEL = 1  # of zstd
UNUSABLE = (RhymedError, OSError, lmdb.Error, ValueError)
"""Errors of a folder that is damaged, full, or not ours."""


class LocalStore:
    """Raises one of UNUSABLE if the folder cannot be read, `RunMismatch` if it belongs to another model."""

    def __init__(self, folder: Path, fingerprint: str, responses: int) -> None:
        self._responses = responses
        self._steps: dict[str, tuple[int, int]] = {}  # prompt -> step to write next, responses it has already
        self._database: Database | Reader
        self._writes: Writes | None = None
        exists = (folder / "data.mdb").exists()
        if exists:
            _check(folder, fingerprint)
        try:
            self._database = Database(folder, MAP_BYTES, durable=False)
            self._writes = self._begin(self._database, fingerprint)
        except UNUSABLE as error:
            if not exists:
                raise
            log.warning("%s is opened read-only: %s", folder, error)
            self._database = Reader(folder)
        self._reads = Reads(self._database)

    @staticmethod
    def _begin(database: Database, fingerprint: str) -> Writes:
        writes = Writes(database, LEVEL)
        try:
            _commit(database, lambda batch: writes.open_run(batch, OpenRun(run=RUN, fingerprint=fingerprint)))
        except UNUSABLE:
            database.close()
            raise
        return writes

    def read(self, prompt: str) -> list[PastResponse]:
        """A prompt's earlier responses. Responses written after this call belong to the next epoch."""
        try:
            answer, arrays = self._reads.history(GetHistory(prompt=prompt, before_step=0, limit=self._responses or 1))
        except lmdb.Error as error:
            raise StoreDamaged(str(error)) from None
        past, at = [], 0
        for info in answer.samples:
            past.append(PastResponse(arrays[0][at : at + info.length].astype(np.int32), info.id.step))
            at += info.length
        self._steps[prompt] = (max((response.step for response in past), default=ROUNDS - 1) + 1, 0)
        return past[: self._responses]

    def write(self, prompt: str, context: Sequence[int], tokens: Sequence[int]) -> None:
        """Adds a finished response. After the first failed write, which is logged, nothing more is written."""
        writes = self._writes
        if writes is None or not len(tokens):
            return
        if prompt not in self._steps:
            self.read(prompt)
        step, index = self._steps[prompt]
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
        try:
            assert isinstance(self._database, Database), "it was opened for writing"
            _commit(self._database, lambda batch: writes.put_samples(batch, rows))
        except UNUSABLE as error:
            log.warning("responses are no longer stored: %s", error)
            self._writes = None

    def close(self) -> None:
        try:
            self._database.close()
        except UNUSABLE as error:
            log.warning("the history may lack its last responses: %s", error)


def _check(folder: Path, fingerprint: str) -> None:
    """Raises `RunMismatch`, or what `Reader` raises."""
    with Reader(folder) as reader, reader.read() as txn:
        if (header := txn.get(b"run", db=reader.tables["meta"])) is None:
            return
        run, before = msgspec.json.decode(bytes(header), type=tuple[str, str])
    if run != RUN:
        raise RunMismatch(f"it is the store of run {run!r}: choose a folder that only the engine uses")
    if before != fingerprint:
        raise RunMismatch(f"it belongs to another model, {before}, not {fingerprint}: choose another folder")


def _commit(database: Database, operation: Operation) -> None:
    (error,) = database.commit([operation])
    if error is not None:
        raise error


def fingerprint(model_config: Any) -> str:
    """Identifies the meaning of token ids: the tokenizer and the model's architecture."""
    tokenizer = Path(str(model_config.tokenizer))
    file = tokenizer / "tokenizer.json"
    digest = hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file.is_file() else str(tokenizer)
    identity = {
        "tokenizer": digest,
        "vocabulary": int(model_config.get_vocab_size()),
        "model": list(getattr(model_config.hf_config, "architectures", None) or []),
    }
    return json.dumps(identity, sort_keys=True)


def open_local(folder: str, model_config: Any, responses: int) -> LocalStore | None:
    """None, with a warning, if it cannot be used."""
    try:
        return LocalStore(Path(folder), fingerprint(model_config), responses)
    except UNUSABLE as error:
        log.warning("drafting continues without the history in %s: %s", folder, error)
        return None
