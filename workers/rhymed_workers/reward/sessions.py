"""What scorers get of a sample in turns: the policy's last turn as its response, and the rest as columns of the row.

An environment's words are not the policy's, so a response that is scored has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rhymed.inputs.rows import Row
from rhymed_store.client import StoredSample
from rhymed_workers.scorers.setting import EARNED

TRANSCRIPT, TURNS = "environment_transcript", "environment_turns"
"""Columns besides `EARNED`: the whole response as text, and the number of turns."""


def last_turn(sample: StoredSample) -> StoredSample:
    """With the tokens of its last turn alone; unchanged without an environment."""
    turns = sample.info.turns
    if len(turns) < 2:
        return sample
    last = len(turns) - 1 - (len(turns) + 1) % 2  # an environment's answer may be the last run
    start = sum(turns[:last])
    return replace(sample, tokens=sample.tokens[start : start + turns[last]])


def with_session(row: Row, sample: StoredSample, decode: Callable[[Sequence[StoredSample]], list[str]]) -> Row:
    (text,) = decode([sample])
    return {**row, EARNED: sample.info.earned, TRANSCRIPT: text, TURNS: (len(sample.info.turns) + 1) // 2}


def as_if_answered(row: Row, response: str) -> Row:
    """The row of a sample that would have one turn, whose environment gave 0."""
    return {**row, EARNED: 0.0, TRANSCRIPT: response, TURNS: 1}
