"""The headers of all samples of a store as columns, for overviews: ten times as fast as unpacking each record.

Invariant: the columns agree with `records.unpack_record`; a record whose checksum differs is counted and left out.
Holds no snapshot longer than a slice, and between slices other threads and the writer run; so samples that are
written meanwhile may be missing. `read_columns` reads them; `epochs_of` and `title` say to which epoch a step
belongs. Knows no text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.steps import evaluated_version, is_evaluation, is_training
from rhymed.core.text import epoch_name
from rhymed_store.codec.records import REWARD_BIT, STATE_SHIFT, STATES, STEP_BIAS, intact
from rhymed_store.database.tables import Tables

SLICE = 2000  # records
PAUSE_S = 0.0005  # between slices: long enough for a waiting thread to get the interpreter
KEY = np.dtype([("prompt", ">u8"), ("step", ">u4"), ("index", ">u2")])
HEADER = np.dtype(
    [
        ("length", "<u4"),
        ("prompt_length", "<u4"),
        ("prompt_check", "<u4"),
        ("position", "<u8"),
        ("size", "<u4"),
        ("flags", "u1"),
        ("reward", "<f8"),
    ]
)
"""As `records` packs them."""


@dataclass(frozen=True)
class SampleColumns:
    """One row per sample, by prompt, step, index."""

    prompt: NDArray[np.uint64]  # the id as a number
    step: NDArray[np.int64]
    length: NDArray[np.int64]  # response tokens
    reward: NDArray[np.float64]  # NaN: not scored
    dropped: NDArray[np.bool_]
    damaged: int  # records that are left out

    def __len__(self) -> int:
        return len(self.prompt)


def read_columns(database: Tables) -> SampleColumns:
    """Raises `StoreDamaged` where the database cannot be read."""
    keys: list[bytes] = []
    headers: list[bytes] = []
    damaged, after = 0, b""
    while after is not None:
        after, bad = _slice(database, after, keys, headers)
        damaged += bad
        time.sleep(PAUSE_S)
    return _columns(b"".join(keys), b"".join(headers), damaged)


def _slice(database: Tables, after: bytes, keys: list[bytes], headers: list[bytes]) -> tuple[Any, int]:
    """Add the records after a key. Returns the last key, None at the end, and how many records are damaged."""
    damaged = count = 0
    last: Any = None
    with database.read() as txn, txn.cursor(database.tables["samples"]) as cursor:
        if not cursor.set_range(after + b"\0" if after else b"\0"):
            return None, 0
        for key, value in islice(cursor.iternext(), SLICE):
            count += 1
            last = bytes(key)
            raw = bytes(value)
            if len(last) == KEY.itemsize and len(raw) >= HEADER.itemsize and intact(last, raw):
                keys.append(last)
                headers.append(raw[: HEADER.itemsize])
            else:
                damaged += 1
    return (last if count == SLICE else None), damaged


def _columns(keys: bytes, headers: bytes, damaged: int) -> SampleColumns:
    key, header = np.frombuffer(keys, KEY), np.frombuffer(headers, HEADER)
    flags = header["flags"]
    return SampleColumns(
        prompt=key["prompt"].astype(np.uint64),
        step=key["step"].astype(np.int64) - STEP_BIAS,
        length=header["length"].astype(np.int64),
        reward=np.where(flags & REWARD_BIT, header["reward"], np.nan),
        dropped=(flags >> STATE_SHIFT & 3) == STATES.index("dropped"),
        damaged=damaged,
    )


# Numbers and names of a prompt's epochs. Pure.
#
# An epoch is the ordinal of a prompt's training step, from 0; titles count from 1. Imported history keeps its
# negative step, so -1 comes right before epoch 0; evaluations keep their step, from EVAL, and come after all epochs.
# Engines with a store of their own have no steps: they count from ROUNDS how often a prompt was generated.

ROUNDS = -(1 << 30)
"""Step of the first time that a prompt was generated; imports never reach so far down."""


def epochs_of(steps: Iterable[int]) -> dict[int, int]:
    """Step -> epoch, of one prompt, ascending."""
    distinct = sorted(set(steps))
    trained = [step for step in distinct if is_training(step)]
    numbers = {step: number for number, step in enumerate(trained)}
    return {step: numbers.get(step, step) for step in distinct}


def is_trained(epoch: int) -> bool:
    """Epochs of training, imported history and evaluations have the ranges of their steps."""
    return is_training(epoch)


def title(epoch: int) -> str:
    if is_evaluation(epoch):
        return f"eval v{evaluated_version(epoch)}"
    if epoch < ROUNDS // 2:
        return f"round {epoch - ROUNDS + 1}"
    return epoch_name(epoch) if epoch >= 0 else f"imported {epoch}"
