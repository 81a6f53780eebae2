"""Joins a sample's turns and answers to one sample: what is trained, and what history drafts from.

Turns that continue each other are one row. A turn whose prompt is not what a row has begins another row, which shares
the longest prefix that an earlier row has; so does a turn that asks with the same prompt again. Pure but for
`complete_sample`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from rhymed.core import messages
from rhymed.core.service.retry import retry
from rhymed_store.client import Logprobs, NewSample, StoreClient, Tokens
from rhymed_store.sessions import StoredSession, get_session
from rhymed_workers.sessions.record import common


async def complete_sample(store: StoreClient, id: messages.SampleId) -> messages.SampleInfo:
    """Stores the sample, whose last answer says that it is done. Returns the record that the store has."""
    stored = await retry(lambda: get_session(store, id, logprobs=True), "reading a sample's turns")
    if not stored.session.done:  # it is stored already: its turns are gone
        (found,) = await retry(lambda: store.get_samples([id]), "reading a sample")
        return msgspec.structs.replace(found.info, said=[], state="")  # as the broker gets it: for rewards only
    sample = joined(stored)
    await retry(lambda: store.put_samples([sample]), "storing a sample")
    return sample.info


@dataclass
class _Row:
    """`tokens`: all of them. The lists are what it has beyond its prompt or what it shares: of the environment and of
    the policy, in turn; row 0 begins with the policy."""

    tokens: Tokens
    row: int = 0  # that it shares a prefix with
    shared: int = 0
    parts: list[Tokens] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    floors: list[Logprobs] = field(default_factory=list)
    drafted: list[NDArray[np.bool_]] = field(default_factory=list)
    versions: list[list[tuple[int, int]]] = field(default_factory=list)  # of each part; empty: the environment's
    rewards: list[float] = field(default_factory=list)  # that each part earned

    def context(self, tokens: Tokens) -> None:
        self.parts.append(tokens)
        self.logprobs.append(np.zeros(len(tokens), np.float32))
        self.floors.append(_no_floors(len(tokens)))
        self.drafted.append(np.zeros(len(tokens), np.bool_))
        self.versions.append([])
        self.rewards.append(0.0)


def _no_floors(length: int) -> Logprobs:
    return np.full(length, -np.inf, np.float32)


def joined(stored: StoredSession) -> NewSample:
    """Environment tokens have log-prob 0 and the version of the turn before them."""
    session, (rows, last) = stored.session, _rows(stored)
    parts = [part for row in rows for part in row.parts]
    earned = [answer.reward for answer in session.answers if answer.reward is not None]
    prompt = rows[0].tokens[: len(rows[0].tokens) - sum(map(len, rows[0].parts))]
    turns = _runs([len(part) for part in parts])
    rewards = [reward for row in rows for reward in row.rewards]
    info = messages.SampleInfo(
        id=session.id,
        prompt_length=len(prompt),
        length=sum(map(len, parts)),
        finish_reason=_finish_reason(session),
        versions=_versions(parts, [versions for row in rows for versions in row.versions]),
        turns=turns,
        earned=sum(earned) if earned else None,
        turn_rewards=_by_run(parts, rewards, turns) if earned and len(rows) == 1 else [],
        forks=_forks(rows),
        last=_place(rows, last, turns),
    )
    return NewSample(
        info,
        prompt,
        np.concatenate(parts),
        np.concatenate([part for row in rows for part in row.logprobs]),
        np.concatenate([part for row in rows for part in row.drafted]) if any(session.drafted) else None,
        np.concatenate([part for row in rows for part in row.floors]) if any(session.floored) else None,
    )


def _finish_reason(session: messages.Session) -> messages.FinishReason:
    """Of the sample. A turn that has as many tokens as its program asked for is whole: its program ended."""
    number = max(number for number in range(len(session.turns)) if number not in session.answers[-1].unused)
    turn, most = session.turns[number], session.answers[number].most
    if session.answers[-1].cut:
        return "length"
    return "stop" if turn.length == most else turn.finish_reason


def _rows(stored: StoredSession) -> tuple[list[_Row], _Row]:
    """And the row that the policy wrote last."""
    assert stored.logprobs is not None, "the session was read with log-probs"
    assert stored.drafted is not None, "and with drafts"
    rows: list[_Row] = []
    answers = stored.session.answers
    rewards = _turn_rewards(stored.session)
    for number, turn in enumerate(stored.turns):
        if number in answers[-1].unused:
            continue
        row = _row(rows, stored.before(number))
        mask, floors = stored.drafted[number], None if stored.floors is None else stored.floors[number]
        row.tokens = np.concatenate([row.tokens, turn])
        row.parts.append(turn)
        row.logprobs.append(stored.logprobs[number])
        row.floors.append(_no_floors(len(turn)) if floors is None else floors)
        row.drafted.append(np.zeros(len(turn), np.bool_) if mask is None else mask)
        row.versions.append(stored.session.turns[number].versions)
        row.rewards.append(rewards[number])
    if len(last := stored.answers[-1]):
        rows[-1].tokens = np.concatenate([rows[-1].tokens, last])
        rows[-1].context(last)
    return rows, row


def _turn_rewards(session: messages.Session) -> list[float]:
    """What each turn earned: the answer to it has its reward. That of a turn which is left out, and of the first
    answer, is of the turn before it, if there is one, else of the first that is not left out."""
    unused = session.answers[-1].unused
    used = [number for number in range(len(session.turns)) if number not in unused]
    found = [0.0] * len(session.turns)
    for number, answer in enumerate(session.answers):
        if answer.reward is not None:
            before = [turn for turn in used if turn < number]
            found[before[-1] if before else used[0]] += answer.reward
    return found


def _by_run(parts: list[Tokens], rewards: list[float], turns: list[int]) -> list[float]:
    """Of each run of the policy that has tokens. Turns without an answer between them are one run."""
    ends = list(accumulate(turns))
    found = [0.0] * len(turns)
    for end, reward in zip(accumulate(map(len, parts)), rewards, strict=True):
        if reward:
            found[bisect_left(ends, end)] += reward
    return [reward for reward, count in zip(found[::2], turns[::2], strict=True) if count]


def _row(rows: list[_Row], prompt: Tokens) -> _Row:
    """The row that goes on with this prompt; a new one is appended."""
    if not rows:
        rows.append(_Row(prompt))
        return rows[-1]
    shares = [common(row.tokens, prompt) for row in rows]
    longest = max(range(len(rows)), key=shares.__getitem__)  # the first of them
    whole = [place for place, row in enumerate(rows) if shares[place] == len(row.tokens)]
    if whole:
        row = rows[max(whole, key=shares.__getitem__)]
    else:
        shared = min(shares[longest], len(prompt) - 1)  # a row begins with tokens that are not the policy's
        row = _Row(prompt[:shared], longest, shared)
        rows.append(row)
    row.context(prompt[len(row.tokens) :])
    row.tokens = prompt
    return row


def _versions(parts: list[Tokens], given: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    versions: list[tuple[int, int]] = []
    for part, runs in zip(parts, given, strict=True):
        for version, count in runs or [(versions[-1][0], len(part))]:
            if versions and versions[-1][0] == version:
                versions[-1] = version, versions[-1][1] + count
            elif count:
                versions.append((version, count))
    return versions


def _forks(rows: list[_Row]) -> list[messages.Fork]:
    starts = accumulate(sum(map(len, row.parts)) for row in rows)
    pairs = zip(starts, rows[1:], strict=False)
    return [messages.Fork(start=start, row=row.row, shared=row.shared) for start, row in pairs]


def _place(rows: list[_Row], last: _Row, turns: list[int]) -> int | None:
    """Of the run with which the row `last` ends; None: it is the last row."""
    ends = dict(zip(map(id, rows), accumulate(sum(map(len, row.parts)) for row in rows), strict=True))
    found = (place for place, end in enumerate(accumulate(turns)) if end == ends[id(last)] and place % 2 == 0)
    return None if last is rows[-1] else next(found, None)


def _runs(lengths: list[int]) -> list[int]:
    """As in SampleInfo: an empty answer joins the turns around it, and an empty last one is left out."""
    runs: list[int] = []
    for place, length in enumerate(lengths):
        if len(runs) % 2 == place % 2 and length:
            runs.append(length)
        elif runs:
            runs[-1] += length
    return runs
