"""What scorers get of a sample in turns: the policy's last turn as its response, and the rest as columns of the row.

An environment's words are not the policy's, so a response that is scored has none of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from rhymed.inputs.rows import Row
from rhymed_store.client import StoredSample
from rhymed_workers.scorers.setting import EARNED

TRANSCRIPT, TURNS = "environment_transcript", "environment_turns"
"""Columns besides `EARNED`: the whole response as text, environment included, and the number of turns."""


def last_turn(sample: StoredSample) -> StoredSample:
    """With the tokens that the policy wrote last alone; unchanged without an environment."""
    turns = sample.info.turns
    if len(turns) < 2:
        return sample
    last = sample.info.last
    if last is None:
        last = max(place for place in range(0, len(turns), 2) if turns[place] or not place)
    start = sum(turns[:last])
    return replace(sample, tokens=sample.tokens[start : start + turns[last]])


def with_session(row: Row, sample: StoredSample, decode: Callable[[Sequence[StoredSample]], list[str]]) -> Row:
    """A sample of several rows has their own tokens one after another, as they were written."""
    bounds = itertools.pairwise([0, *(fork.start for fork in sample.info.forks), sample.info.length])
    texts = decode([replace(sample, tokens=sample.tokens[start:end]) for start, end in bounds])
    return {**row, EARNED: sample.info.earned, TRANSCRIPT: "\n\n".join(texts), TURNS: sample.info.turn_count}


def as_if_answered(row: Row, response: str) -> Row:
    """The row of a sample that would have one turn, whose environment gave 0."""
    return {**row, EARNED: 0.0, TRANSCRIPT: response, TURNS: 1}
