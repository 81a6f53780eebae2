"""The store's calls about samples in turns; see `client` for errors and deadlines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage
from rhymed_store import client
from rhymed_store.client import Logprobs, StoreClient, Tokens


@dataclass(frozen=True)
class NewTurn:
    """A complete turn on its way to the store. Arrays have `turn.length` elements."""

    sample: messages.SampleId
    number: int  # of the turn, from 0
    turn: messages.Turn
    tokens: Tokens
    logprobs: Logprobs
    drafted: NDArray[np.bool_] | None = None  # was it an accepted draft; None: unknown
    floors: Logprobs | None = None  # as in NewSample


@dataclass(frozen=True)
class StoredSession:
    """A sample in turns that is not complete. Log-probs and drafts are None unless they were requested."""

    session: messages.Session
    answers: list[Tokens]
    turns: list[Tokens]
    logprobs: list[Logprobs] | None = None
    drafted: list[NDArray[np.bool_] | None] | None = None
    floors: list[Logprobs | None] | None = None  # of each turn, as in NewSample; come with the log-probs

    @property
    def prompt(self) -> Tokens:
        return self.answers[0]

    @property
    def response(self) -> Tokens:
        """What follows the prompt, of a session without branches: turns and answers, in their order."""
        parts = [part for pair in itertools.zip_longest(self.turns, self.answers[1:]) for part in pair]
        kept = [part for part in parts if part is not None]
        return np.concatenate(kept) if kept else np.zeros(0, np.uint32)

    def before(self, number: int) -> Tokens:
        """The exact tokens before turn `number`: its prompt, as the policy reads it."""
        chain = [number]
        while chain[-1] and self.session.answers[chain[-1]].kept != 0:
            chain.append(self._after(chain[-1]))
        parts = [self.answers[chain.pop()]]
        for place in reversed(chain):
            parts.append(self.turns[self._after(place)])
            if (kept := self.session.answers[place].kept) is not None:
                parts = [np.concatenate(parts)[:kept]]
            parts.append(self.answers[place])
        return np.concatenate(parts)

    def repeats(self, number: int) -> int:
        """How many earlier turns have the same tokens before them as turn `number`."""
        answers = self.session.answers[: number + 1]
        if all(answer.after is None and answer.kept is None for answer in answers):
            return 0  # each prompt is longer than the one before
        lengths: list[int] = []
        for place, answer in enumerate(answers):
            after = self._after(place)
            end = lengths[after] + self.session.turns[after].length if place else 0
            lengths.append((end if answer.kept is None else answer.kept) + answer.length)
        own = self.before(number)
        same = [place for place in range(number) if lengths[place] == lengths[number]]
        return sum(np.array_equal(self.before(place), own) for place in same)

    def _after(self, number: int) -> int:
        """The turn that answer `number` continues."""
        after = self.session.answers[number].after
        return number - 1 if after is None else after


async def put_turns(store: StoreClient, turns: Sequence[NewTurn]) -> None:
    """Returns when all are durable. Raises `UnknownSample` for a turn whose answer the store lacks."""
    masked = [turn.drafted is not None for turn in turns]
    floored = [turn.floors is not None for turn in turns]
    question = messages.PutTurns(
        samples=[turn.sample for turn in turns],
        numbers=[turn.number for turn in turns],
        turns=[turn.turn for turn in turns],
        drafted=masked if any(masked) else [],
        floored=floored if any(floored) else [],
    )
    frames = [
        client.join_arrays([turn.tokens for turn in turns]),
        client.join_arrays(
            [client.with_floors(turn.logprobs, turn.floors, f"turn of sample {turn.sample}") for turn in turns]
        ),
    ]
    if question.drafted:
        none = np.zeros(0, np.uint8)
        frames.append(
            client.join_arrays([none if turn.drafted is None else np.packbits(turn.drafted) for turn in turns])
        )
    await store.ask(question, messages.Done, *frames)


async def put_answer(
    store: StoreClient, sample: messages.SampleId, number: int, answer: messages.Answer, tokens: ArrayLike
) -> bool:
    """Returns when it is durable, or an earlier one is; False: that is another one. Raises `UnknownSample` if the
    store lacks its turn."""
    question = messages.PutAnswer(sample=sample, number=number, answer=answer)
    frame = client.tokens_of(tokens, f"sample {sample}: an answer's tokens")
    reply, _ = await store.ask(question, messages.Done | messages.Begun, frame)
    return isinstance(reply, messages.Done)


async def begin_calls(store: StoreClient, sample: messages.SampleId, number: int, attempt: str) -> bool:
    """False: another attempt has begun the calls of this turn."""
    question = messages.PutCalls(sample=sample, number=number, attempt=attempt)
    answer, _ = await store.ask(question, messages.Done | messages.Begun)
    return isinstance(answer, messages.Done)


async def get_session(
    store: StoreClient, sample: messages.SampleId, *, logprobs: bool = False, first: int = 0
) -> StoredSession:
    """Without answers and turns if the store has none. `logprobs`: with log-probs and drafts. `first`: number of the
    first answer and turn that are read."""
    question = messages.GetSessions(samples=[sample], logprobs=logprobs, first=first)
    answer, frames = await store.ask(question, messages.Sessions)
    if len(frames) != (expected := 3 if logprobs else 1) or len(answer.sessions) != 1:
        raise MalformedMessage(
            f"store sent {len(frames)} arrays of {len(answer.sessions)} sessions, {expected} of 1 expected"
        )
    session: messages.Session = answer.sessions[0]
    lengths = [turn.length for turn in session.turns]
    parts = client.cut_arrays(frames[0], np.dtype(np.uint32), list(_alternate(session)))
    stored = StoredSession(session, parts[::2], parts[1::2])
    if not logprobs:
        return stored
    probs, floors = client.cut_logprobs(frames[1], lengths, session.floored)
    sizes = [(length + 7) // 8 if has else 0 for length, has in zip(lengths, session.drafted, strict=True)]
    bits = client.cut_arrays(frames[2], np.dtype(np.uint8), sizes)
    drafted = [
        np.unpackbits(part, count=length).astype(np.bool_) if has else None
        for part, length, has in zip(bits, lengths, session.drafted, strict=True)
    ]
    return StoredSession(session, stored.answers, stored.turns, probs, drafted, floors)


def _alternate(session: messages.Session) -> Iterator[int]:
    """Tokens of answers and turns, in their order."""
    for place, answer in enumerate(session.answers):
        yield answer.length
        if place < len(session.turns):
            yield session.turns[place].length
