"""Samples in turns in a real store, written without a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rhymed.core.messages import Answer, Call, PutAnswer, PutScores, PutTurns, SampleId, SampleInfo, Score, Turn
from rhymed_store.client import NewSample
from tests.records.history.folders import APPLES
from tests.store.stores import LocalStore

GOT = SampleId(0, APPLES, 0)  # two turns: a call, and the final answer
RAISED = SampleId(0, APPLES, 1)  # two turns, of which each makes a call; the second fails and ends it
PLAIN = SampleId(0, APPLES, 2)  # one turn without a call
OPEN = SampleId(0, APPLES, 3)  # two turns, of which the second is not answered

ADD = Call(name="add", seconds=0.004)
BROKEN = Call(name="divide", seconds=1.25, error="division by zero")

Exchange = tuple[Sequence[int], Sequence[int], Sequence[Call]]
"""A turn's tokens, those of the answer to it, and the calls that it made."""


def exchanges() -> dict[SampleId, list[Exchange]]:
    return {
        GOT: [([40, 41, 42, 43], [66, 67], [ADD]), ([50, 51, 52], [], [])],
        RAISED: [([40, 41], [66, 67, 68], [ADD, ADD]), ([44], [], [BROKEN])],
        PLAIN: [([60, 61, 62], [], [])],
    }


def write_sessions(folder: Path) -> None:
    """Into the store of a folder that `write_store` has made."""
    local = LocalStore(folder / "store")
    for place, (sample, parts) in enumerate(exchanges().items()):
        begin(local, sample, parts)
        complete(local, sample, parts)
        score = PutScores(scores=[Score(id=sample, reward=1.0 / (1 + place))])
        local.do(lambda batch, score=score: local.writes.put_scores(batch, score))
    begin(local, OPEN, [([40, 41], [66], [ADD])])
    put_turn(local, OPEN, 1, [42, 43])
    local.database.close()


def begin(local: LocalStore, sample: SampleId, parts: Sequence[Exchange]) -> None:
    """The store has all of its turns and answers, as while it is in progress."""
    put_answer(local, sample, 0, [0, 1, 2])
    for number, (turn, answer, calls) in enumerate(parts):
        put_turn(local, sample, number, turn)
        done = number == len(parts) - 1 and not answer
        put_answer(local, sample, number + 1, answer, calls=list(calls), done=done)


def put_answer(local: LocalStore, sample: SampleId, number: int, tokens: Sequence[int], **fields: object) -> None:
    answer = Answer(length=len(tokens), **fields)  # type: ignore[arg-type]
    message, frame = PutAnswer(sample=sample, number=number, answer=answer), np.asarray(tokens, np.uint32).tobytes()
    local.do(lambda batch: local.writes.sessions.put_answer(batch, message, frame))


def put_turn(local: LocalStore, sample: SampleId, number: int, tokens: Sequence[int]) -> None:
    turn = Turn(length=len(tokens), finish_reason="stop", versions=[(0, len(tokens))])
    message = PutTurns(samples=[sample], numbers=[number], turns=[turn])
    frames = [np.asarray(tokens, np.uint32).tobytes(), np.zeros(len(tokens), np.float32).tobytes()]

    def put(batch: object) -> None:
        local.writes.sessions.put_turns(batch, message, frames)  # type: ignore[arg-type]

    local.do(put)


def complete(local: LocalStore, sample: SampleId, parts: Sequence[Exchange], turns: list[int] | None = None) -> None:
    """`turns`: others than those of its parts, as no worker writes them."""
    runs = [tokens for turn, answer, _ in parts for tokens in (turn, answer) if tokens]
    tokens = np.concatenate([np.asarray(run, np.uint32) for run in runs])
    info = SampleInfo(
        id=sample,
        prompt_length=3,
        length=len(tokens),
        finish_reason="stop",
        versions=[(0, len(tokens))],
        turns=[len(run) for run in runs] if turns is None else turns,
    )
    drafted = np.zeros(len(tokens), np.bool_)
    drafted[:2] = True
    local.put(NewSample(info, np.arange(3, dtype=np.uint32), tokens, np.zeros(len(tokens), np.float32), drafted))
